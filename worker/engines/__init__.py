"""What computes: the interface of engines, which there are, and onnxruntime."""
