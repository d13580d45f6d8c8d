"""Pictures in, predictions out: a model's sidecar, and how it is applied."""

# x_min, y_min, x_max, y_max.
Corners = tuple[float, float, float, float]
