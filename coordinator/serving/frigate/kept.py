"""The models that Frigate sent: FOLDER/HASH/NAME.onnx, the latest few."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from protos.files import write_atomically

# One is in use; a home tries another one now and then.
MOST_MODELS = 4
_HASH_DIGITS = 16


class Kept:
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
        by_age = sorted(self._folder.glob("*/*.onnx"), key=lambda each: each.stat().st_mtime)
        for old in by_age[:-MOST_MODELS]:
            old.unlink()
            if not any(old.parent.iterdir()):
                old.parent.rmdir()
        return path

    def drop(self, path: Path) -> None:
        """Removes a model that cannot be used."""
        shutil.rmtree(path.parent, ignore_errors=True)
