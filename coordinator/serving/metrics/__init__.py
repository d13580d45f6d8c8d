"""Prometheus metrics at `/metrics`."""
