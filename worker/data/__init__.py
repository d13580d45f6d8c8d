"""The data plane: borders go from worker to worker over streams of their own."""
