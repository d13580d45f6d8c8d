"""How the networks that imbrex ships were trained; nothing of it is installed."""
