"""More than one coordinator: joining a cluster, and what is shared in it."""
