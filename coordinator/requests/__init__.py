"""One request, from its tasks to its answer, and what is learnt from it."""
