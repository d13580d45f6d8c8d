"""The stream of tasks and results between a worker and a coordinator."""
