"""Daemons on computers that are emulated: as slow as another's processor, software and memory."""
