"""Continuous sources: a folder or a camera, frame by frame through a coordinator."""
