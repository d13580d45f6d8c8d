"""What is wrong with a cluster, and the cure: what `imbrex doctor` tells."""
