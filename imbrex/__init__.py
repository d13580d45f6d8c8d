"""imbrex, the public package: a client, the command line, the demo."""
