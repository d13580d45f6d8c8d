"""Frigate's `zmq` detector: its tensors come over ZeroMQ, and so does the model."""
