"""What people and tools speak: HTTP."""
