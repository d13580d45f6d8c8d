"""`imbrex demo`: a whole cluster of real processes on one machine."""
