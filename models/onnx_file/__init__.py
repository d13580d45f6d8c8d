"""Reads ONNX files: sound ones become graphs."""
