"""`/v1`: the native interface, used by the command line and the page."""
