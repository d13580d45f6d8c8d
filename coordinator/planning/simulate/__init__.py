"""The event simulator, and the same rules on plain numbers for searches."""
