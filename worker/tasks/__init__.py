"""The tasks of a worker as pure state: events in, actions out."""
