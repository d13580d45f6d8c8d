"""What the tiles of blocks read, compute and own: boxes and their sizes, without costs."""
