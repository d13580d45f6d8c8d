"""Units divided one by one: their layouts, and what moves between these."""
