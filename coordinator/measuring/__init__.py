"""What requests show of devices and links, and when that calls for another plan."""
