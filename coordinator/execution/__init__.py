"""Running a plan: the driver that executes the pure scheduler's actions."""
