"""The search algorithms of two papers, independent of networks: cost tables in, choices out."""
