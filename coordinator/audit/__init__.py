"""Checks whether devices compute correctly: by samples of requests, and by exams when they join."""
