"""The live cluster and what the coordinator keeps of it while it runs."""
