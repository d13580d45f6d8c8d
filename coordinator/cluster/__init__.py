"""Finding workers and keeping in touch: discovery, membership, links, weights."""
