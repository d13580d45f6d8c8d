"""Computes tasks, and measures itself."""
