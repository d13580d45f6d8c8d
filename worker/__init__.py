"""The worker: keeps weights, runs programs, slices and joins tensors by boxes, measures itself."""
