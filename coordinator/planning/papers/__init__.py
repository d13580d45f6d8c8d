"""The planners that papers have published, and what only they use."""
