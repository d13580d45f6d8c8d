"""imbrex on the command line."""

