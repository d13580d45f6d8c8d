"""The networks that this coordinator serves, and what they are called."""
