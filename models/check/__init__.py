"""Compares a divided network with the whole one."""
