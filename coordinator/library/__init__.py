"""The models that this coordinator serves, and their names."""
