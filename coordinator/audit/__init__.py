"""Whether devices compute what they should: sampled while they serve, and asked when they join."""
