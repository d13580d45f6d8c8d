"""Measurements and comparisons with the papers; JSON out. Nothing imports this."""
