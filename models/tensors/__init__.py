"""Boxes of tensors, windows over them, and how they are encoded."""
