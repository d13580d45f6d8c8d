"""The models that Frigate sent: FOLDER/HASH/NAME.onnx, the latest few. Beside those whose boxes
have a known form lies a sidecar, so that plans count what travels: pixels, and the likely boxes.
"""

import hashlib
import shutil
from pathlib import Path

from models.catalogue.guess import detector, metadata
from models.onnx_file.importer import graph_of
from models.onnx_file.model_file import read_model
from models.vision.sidecar import dump, sidecar_path
from protos.daemon.files import write_atomically
from protos.errors import ImbrexError

# One is in use; a home tries another one now and then.
MOST_MODELS = 4
_HASH_DIGITS = 16


class ModelFolder:
    """A folder of models. A file's name alone says nothing: what is kept is found by its hash."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, name: str) -> Path | None:
        """The latest model that was sent under this name, or under any for an empty one."""
        found = self._folder.glob(f"*/{name or '*.onnx'}")
        return max(found, key=lambda path: path.stat().st_mtime, default=None)

    def add(self, name: str, data: bytes) -> Path:
        """Keeps a model, and removes those that were sent longest ago."""
        path = self._folder / hashlib.sha256(data).hexdigest()[:_HASH_DIGITS] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
        _describe(path)
        by_age = sorted(self._folder.glob("*/*.onnx"), key=lambda path: path.stat().st_mtime)
        for old in by_age[:-MOST_MODELS]:
            old.unlink()
            sidecar_path(old).unlink(missing_ok=True)
            if not any(old.parent.iterdir()):
                old.parent.rmdir()
        return path

    def drop(self, path: Path) -> None:
        """Removes a model that cannot be used."""
        shutil.rmtree(path.parent, ignore_errors=True)


def _describe(path: Path) -> None:
    try:
        stored = read_model(path)
        sidecar = detector(graph_of(stored, path.stem), metadata(stored.proto), path.stem)
    except ImbrexError:
        return  # loading it says why
    if sidecar is not None:
        write_atomically(sidecar_path(path), dump(sidecar).encode())
