"""Pictures in, predictions out: a model's sidecar, and how it is applied."""
