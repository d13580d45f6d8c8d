"""The problems of a cluster and their cures, as `imbrex doctor` shows them."""
