"""The data plane: halos go from worker to worker over dedicated streams."""
