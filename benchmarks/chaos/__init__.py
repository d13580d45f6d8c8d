"""What a home does to its devices, for minutes, under a stream of requests."""
