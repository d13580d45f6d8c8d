"""The default model: finds and reads handwritten digits on a sheet."""

from pathlib import Path

FOLDER = Path(__file__).parent
MODEL = FOLDER / "digits.onnx"
SIDECAR = FOLDER / "digits.json"
EXAMPLES = FOLDER / "examples"
