"""What the coordinator decides: which plans are in force, and who may be computed."""
