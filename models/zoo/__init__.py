"""Networks built from code with seeded, untrained weights: for benchmarks and tests."""
