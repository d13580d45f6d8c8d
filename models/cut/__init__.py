"""Units of a network, and the programs that compute their tiles."""
