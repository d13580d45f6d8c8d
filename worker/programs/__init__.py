"""Programs and weights as they arrive and are kept: verified, by content, aligned."""
