"""Published times of real devices, and what presets predict of them."""
