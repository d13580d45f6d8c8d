"""Planners that papers have published and that no other one builds on."""
