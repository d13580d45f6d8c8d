"""Programs and weights of a worker: verified on arrival and stored by content."""
