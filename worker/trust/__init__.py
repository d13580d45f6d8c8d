"""Certificates of a worker, and the coordinators that it has seen."""
