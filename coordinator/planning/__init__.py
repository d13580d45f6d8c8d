"""Plans and planners: which layers to fuse, which device computes which tile."""
