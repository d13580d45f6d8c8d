"""DeepStack and CodeProject.AI: what Frigate, Home Assistant and Blue Iris speak."""
