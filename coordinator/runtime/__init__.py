"""The asyncio side of the coordinator: the live cluster, and what executes control's decisions."""
