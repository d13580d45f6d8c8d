"""The models that there are: packaged, installed, and built here."""
