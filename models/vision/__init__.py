"""Pictures in, predictions out: what a sidecar says of a model, and how it is carried out."""
