"""The coordinator: finds workers, fits costs, plans, executes, serves."""
