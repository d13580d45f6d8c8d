"""Ours: an installed library brings a package of this name too."""
