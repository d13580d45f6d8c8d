"""Costs of computing and sending: profiles, regressions, links, corrections."""
