"""How large the house is, and how much of it one request passes."""
