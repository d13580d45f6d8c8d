"""The machine that a worker runs on, and what it says of it."""
