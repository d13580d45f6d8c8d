"""The search algorithms of two papers, free of networks: cost tables in, choices out."""
