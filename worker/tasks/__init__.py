"""The tasks of a worker as a pure state machine: events in, actions out."""
