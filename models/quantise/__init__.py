"""Quantises networks to 8 bits."""
