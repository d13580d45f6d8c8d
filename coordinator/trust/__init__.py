"""Who belongs to the cluster, and the state that says so."""
