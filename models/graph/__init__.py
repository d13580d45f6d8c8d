"""A network as data: its nodes, and the shapes of its tensors."""
