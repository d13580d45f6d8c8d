"""Runs whole networks and tiles in this process."""
