"""The interfaces for clients: HTTP and the Open Inference Protocol over gRPC."""
