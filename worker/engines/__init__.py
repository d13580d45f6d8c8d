"""Engines: their interface, their registry, onnxruntime, and others beside it."""

# The engine that is fastest, as measured.
AUTO = "auto"
