"""The interface of DeepStack and CodeProject.AI, for Frigate, Home Assistant and Blue Iris."""
