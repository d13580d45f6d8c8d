"""The default model: finds and reads handwritten digits on a sheet."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
MODEL = FOLDER / "digits.onnx"
SIDECAR = FOLDER / "digits.json"
EXAMPLES = FOLDER / "examples"
