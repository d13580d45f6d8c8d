"""Plans as data, the tasks that they become, and the scheduler that says which comes next. Pure."""
