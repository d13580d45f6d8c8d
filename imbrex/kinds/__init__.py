"""Kinds of small computers as numbers, for planners and for emulation."""
