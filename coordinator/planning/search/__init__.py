"""Searches: the costs of every block on a cluster, drafts of plans, and moves that change them."""
