"""The training of `digits`, and its example sheets."""
