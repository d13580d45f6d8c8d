"""Finds workers and keeps in touch with them: discovery, the table, connections, weights."""
