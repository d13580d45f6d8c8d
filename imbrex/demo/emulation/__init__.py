"""Daemons on emulated computers: as slow as another computer's processor, software and memory."""
