"""What is installed at one coordinator of a cluster is installed at all of them."""
