"""Running a plan: a pure scheduler, and the driver that does what it says."""
