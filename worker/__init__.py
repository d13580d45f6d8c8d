"""The worker: keeps weights, runs programs, slices and joins tensors by boxes, measures itself."""

import os

# onnxruntime's Linux builds report their use to their maker unless this is set before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
