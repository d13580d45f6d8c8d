"""Engines: their interface, their registry, onnxruntime, and others beside it."""
