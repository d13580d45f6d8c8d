"""Identities, certificates and keys."""
