"""Attacks on a real coordinator, and what a genuine client sees meanwhile."""
