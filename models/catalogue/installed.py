"""Models that were added or downloaded: `NAME/VERSION/model.onnx` with its sidecar, in one folder.

The layout is that of a model repository, so other servers can read the folder too. A version is
either complete or absent: it is written to a temporary folder and renamed.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from models.vision.head import VisionTask
from models.vision.heads import TASKS
from models.vision.sidecar import Sidecar, dump, sidecar_path
from protos.daemon.files import own_folder, read_text
from protos.errors import BadConfiguration, BadRequest, NotFound

VARIABLE = "IMBREX_MODELS"
MODEL_FILE = "model.onnx"
# Without a home there are no models, and none can be added.
_NOWHERE = Path(os.devnull) / "models"
DEFAULTS_FILE = "defaults.json"
# Stays free on the disk, for sidecars and so that the disk is not full afterwards.
SPARE_BYTES = 16 << 20
# Names are part of URLs, file names and metrics.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Installed:
    """A model's versions by number, lowest first, with the file of each; at least one."""

    name: str
    versions: dict[int, Path]

    @property
    def latest(self) -> Path:
        """The file of the highest version."""
        return self.versions[max(self.versions)]


def folder() -> Path:
    """Where this user's models are kept."""
    named = os.environ.get(VARIABLE)
    try:
        return Path(named) if named else own_folder("data", VARIABLE) / "models"
    except BadConfiguration:
        return _NOWHERE


def require_name(name: str) -> None:
    """Refuses what cannot be a model's name.

    Raises:
        BadRequest: it cannot.
    """
    if not NAME.fullmatch(name):
        raise BadRequest(
            cause=f"{name!r} cannot be a model's name",
            cure="Use up to 64 letters, digits, dots, dashes and underscores",
        )


class Store:
    """A folder of models."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or folder()

    def installed(self) -> dict[str, Installed]:
        """Every model by name; a folder that does not exist yet holds none."""
        try:
            folders = sorted(path for path in self.root.iterdir() if NAME.fullmatch(path.name))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise self._unusable(error) from error
        found = {folder.name: _versions(folder) for folder in folders if folder.is_dir()}
        return {name: Installed(name, versions) for name, versions in found.items() if versions}

    def find(self, name: str) -> Installed | None:
        """The model called `name`, if it is installed."""
        if not NAME.fullmatch(name):
            return None
        versions = _versions(self.root / name)
        return Installed(name, versions) if versions else None

    def incoming(self) -> Path:
        """A folder for incomplete files.

        Raises:
            BadConfiguration: it cannot be created.
        """
        made = self.root / ".incoming"
        try:
            made.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error
        return made

    def missing(self) -> dict[str, list[int]]:
        """The versions that the cluster has, and that are not in the folder yet."""
        return {}

    def others(self) -> list[str]:
        """The names of the other coordinators, which are asked for what is missing."""
        return []

    def changed_s(self) -> float:
        """Changes whenever a version is added or removed, even by a clock that has gone back; 0 if
        there is none.
        """
        try:
            return sum(path.stat().st_mtime for path in (self.root, *self.root.iterdir()))
        except OSError:
            return 0.0

    def put(
        self,
        name: str,
        write: Callable[[Path], None],
        number: Callable[[Path, int], int] = lambda _, following: following,
    ) -> int:
        """Adds a version, whose files `write` puts into a folder. Its number is what `number` makes
        of that folder and of the number after the highest: that.

        Raises:
            BadRequest: the name cannot be used.
            BadConfiguration: the folder cannot be written.
            ImbrexError: as `number`.
        """
        require_name(name)
        try:
            (self.root / name).mkdir(parents=True, exist_ok=True)
            following = max(_versions(self.root / name), default=0) + 1
            with tempfile.TemporaryDirectory(dir=self.root / name, prefix=".new-") as new:
                made = Path(new) / "version"
                made.mkdir()
                write(made)
                version = number(made, following)
                made.rename(self.root / name / str(version))
        except OSError as error:
            raise self._unusable(error) from error
        finally:
            with suppress(OSError):  # nothing was added, and there was nothing before
                (self.root / name).rmdir()
        return version

    def add(self, name: str, model: bytes, sidecar: Sidecar) -> int:
        """Adds a version of this serialised model.

        Raises:
            BadRequest: the name cannot be used.
            BadConfiguration: the folder cannot be written.
        """

        def write(folder: Path) -> None:
            (folder / MODEL_FILE).write_bytes(model)
            sidecar_path(folder / MODEL_FILE).write_text(dump(sidecar), encoding="utf-8")

        return self.put(name, write)

    def remove(self, name: str, version: int | None = None) -> tuple[int, ...]:
        """Removes a model, or one version of it; returns the removed versions.

        Raises:
            NotFound: it is not installed.
        """
        found = self.find(name)
        if found is None:
            raise NotFound(
                cause=f"no model {name!r} was added or downloaded",
                cure=f"`imbrex models list` shows what is in {self.root}",
            )
        if version is not None and version not in found.versions:
            known = ", ".join(map(str, found.versions))
            raise NotFound(
                cause=f"the model {name!r} has no version {version}", cure=f"It has {known}"
            )
        gone = tuple(found.versions) if version is None else (version,)
        self.delete(name, gone)
        return gone

    def delete(self, name: str, versions: Collection[int]) -> None:
        """Deletes those of these versions that are here; with the last one, all of the model.

        Raises:
            BadConfiguration: the folder cannot be written.
        """
        here = _versions(self.root / name)
        try:
            for number in here.keys() & set(versions):
                # All of it at once, whatever happens meanwhile.
                with tempfile.TemporaryDirectory(dir=self.root / name, prefix=".old-") as old:
                    here[number].parent.rename(Path(old) / "version")
            if here and here.keys() <= set(versions):
                shutil.rmtree(self.root / name)
                self._write_defaults({k: v for k, v in self.defaults().items() if v != name})
        except OSError as error:
            raise self._unusable(error) from error

    def defaults(self) -> dict[VisionTask, str]:
        """The models chosen to answer for tasks, as far as they are still installed."""
        try:
            read = json.loads(read_text(self.root / DEFAULTS_FILE))
            chosen = {task: read.get(task) for task in TASKS}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, AttributeError) as error:
            raise BadConfiguration(
                cause=f"{self.root / DEFAULTS_FILE} cannot be read ({error})", cure="Remove it"
            ) from error
        return {
            task: name
            for task, name in chosen.items()
            if isinstance(name, str) and self.find(name) is not None
        }

    def choose(self, task: VisionTask, name: str) -> None:
        """Makes an installed model the one that answers for a task."""
        self._write_defaults(self.defaults() | {task: name})

    def _write_defaults(self, chosen: dict[VisionTask, str]) -> None:
        path = self.root / DEFAULTS_FILE
        temporary = path.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> BadConfiguration:
        return BadConfiguration(
            cause=f"the models' folder {self.root} cannot be used ({error.strerror or error})",
            cure=f"Check its permissions and free space, or set another with {VARIABLE}",
        )


def _versions(folder: Path) -> dict[int, Path]:
    try:
        numbers = sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
    except OSError:
        return {}
    files = {number: folder / str(number) / MODEL_FILE for number in numbers if number}
    return {number: file for number, file in files.items() if file.is_file()}
