"""Engines: their interface, their registry, and onnxruntime."""
