"""Calls between daemons: channels, clients, and who may call."""
