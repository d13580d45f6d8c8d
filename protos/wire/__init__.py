"""What is sent: facts, frames, limits, versions."""
