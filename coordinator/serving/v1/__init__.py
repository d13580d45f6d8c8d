"""`/v1`: imbrex's own API, which its command line and its page speak."""
