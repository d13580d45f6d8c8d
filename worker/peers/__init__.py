"""Tensors past gRPC: streams between workers, and to coordinators."""
