"""What is learned of devices and links while they work, and when that calls for another plan."""
