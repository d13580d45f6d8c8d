"""A network as data: graph, operators, geometry, cutting, catalogue, pre/post-processing."""

import os

# onnxruntime's Linux builds report their use to their maker unless this is set before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
