"""The models' folder of a coordinator that shares its cluster's state: what is added, removed or
chosen here is so in the cluster first, and only then here.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from coordinator.library.sharing import SERVED_BY
from coordinator.several import listed
from coordinator.several.listed import ListedFile, ListedFiles
from coordinator.trust.cluster_state import COORDINATORS, DEFAULTS, MODELS, ClusterState, Entries
from models.catalogue.installed import NAME, Store
from models.vision.head import VisionTask
from protos.daemon.files import write_atomically
from protos.errors import BadRequest

# In a version's folder: its files as the cluster knows them.
MARK = ".cluster"


class SharedStore(Store):
    """The folder, and the state of the cluster with this authority (its fingerprint), of which this
    coordinator is the one with `own_id`.
    """

    def __init__(
        self, state: ClusterState, authority: str, own_id: str, root: Path | None = None
    ) -> None:
        super().__init__(root)
        self.own_id = own_id
        self.state = state
        self.authority = authority

    def put(
        self,
        name: str,
        write: Callable[[Path], None],
        number: Callable[[Path, int], int] | None = None,
    ) -> int:
        """Adds a version, listed in the cluster.

        Raises:
            Unavailable: the cluster's state cannot be changed at present.
            BadRequest, BadConfiguration: as `Store.put`.
        """

        def listing(made: Path, following: int) -> int:
            files = files_of(made)

            def add(entries: Entries) -> int:
                return listed.add(entries, name, following, files)

            self.mark(made, files)
            return self.state.change((MODELS,), add)

        return super().put(name, write, number or listing)

    def remove(self, name: str, version: int | None = None) -> tuple[int, ...]:
        """Removes a model, or one version of it, from the cluster.

        Raises:
            NotFound: it is not installed in the cluster.
            Unavailable: the cluster's state cannot be changed at present.
        """

        def drop(models: Entries, defaults: Entries) -> tuple[int, ...]:
            if name not in models:
                return ()
            gone = listed.drop(models, name, version)
            if not models.get(name, {}).get("versions"):
                for task in [task for task, told in defaults.items() if told["model"] == name]:
                    del defaults[task]
            return gone

        gone = self.state.change((MODELS, DEFAULTS), drop)
        if not gone:  # what is not listed yet is only here
            return super().remove(name, version)
        self.delete(name, gone)
        return gone

    def choose(self, task: VisionTask, name: str) -> None:
        """Makes a model the one that answers for a task, at every coordinator.

        Raises:
            Unavailable: the cluster's state cannot be changed at present.
        """

        def put(entries: Entries) -> None:
            entries[task] = {"model": name}

        self.state.change((DEFAULTS,), put)
        super().choose(task, name)

    def missing(self) -> dict[str, list[int]]:
        """The versions that the cluster has, and that are not in the folder yet."""
        models, _ = listed.read(self.state.entries(MODELS))
        here = {name: model.versions.keys() for name, model in self.installed().items()}
        found = {
            name: sorted(model.versions.keys() - here.get(name, set()))
            for name, model in models.items()
        }
        return {name: versions for name, versions in found.items() if versions}

    def others(self) -> list[str]:
        """The names of the other coordinators, which are asked for what is missing."""
        coordinators = self.state.entries(COORDINATORS).items()
        return [str(entry["name"]) for id_, entry in coordinators if id_ != self.own_id]

    def mark(self, folder: Path, files: ListedFiles) -> None:
        """Notes that a version's folder is the cluster's."""
        told = {
            "authority": self.authority,
            "files": {name: [file.sha256, file.size_bytes] for name, file in files.items()},
        }
        write_atomically(folder / MARK, json.dumps(told).encode() + b"\n")

    def marked(self, folder: Path) -> ListedFiles | None:
        """A version's files as they were when it was marked; None if it never was the cluster's."""
        try:
            told = json.loads((folder / MARK).read_text())
            if told["authority"] != self.authority:
                return None
            return {
                name: ListedFile(str(sha), int(size)) for name, (sha, size) in told["files"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def serve_from(self, state_dir: Path) -> None:
        """Notes in the folder whose it is: commands that change it change the cluster's state."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            write_atomically(self.root / SERVED_BY, f"{state_dir.absolute()}\n".encode())
        except OSError as error:
            raise self._unusable(error) from error


def files_of(folder: Path) -> dict[str, ListedFile]:
    """The files of a version, by their names.

    Raises:
        BadRequest: there are too many, or other things than files, or unusual names.
        OSError: they cannot be read.
    """
    found = [path for path in folder.iterdir() if not path.name.startswith(".")]
    odd = [path.name for path in found if not path.is_file() or not NAME.fullmatch(path.name)]
    if odd or len(found) > listed.MOST_FILES:
        raise BadRequest(
            cause=f"{folder} cannot be shared with the other coordinators: "
            + (f"it holds {odd[0][:64]!r}" if odd else f"it holds {len(found)} files"),
            cure=f"At most {listed.MOST_FILES} files belong to a version, named by letters and "
            "digits",
        )
    return {path.name: ListedFile(_hash(path), path.stat().st_size) for path in sorted(found)}


def is_as_marked(folder: Path, files: ListedFiles) -> bool:
    """Whether no file was changed since the mark was made."""
    marked_ns = (folder / MARK).stat().st_mtime_ns
    here = {path.name: path.stat() for path in folder.iterdir() if not path.name.startswith(".")}
    return here.keys() == files.keys() and all(
        stat.st_size == files[name].size_bytes and stat.st_mtime_ns <= marked_ns
        for name, stat in here.items()
    )


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
