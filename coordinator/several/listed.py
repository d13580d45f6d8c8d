"""The models in the cluster's state: their versions, and the files of each by hash. Pure.

Numbers of versions only grow. One that is lower than the newest and not listed was removed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.trust.cluster_state import Entries
from models.catalogue.installed import MODEL_FILE, NAME
from models.onnx_file.model_file import MAX_MODEL_BYTES
from protos.errors import NotFound

HASH = re.compile(r"[0-9a-f]{64}")
# A model, its sidecar, and how a quantised one compares.
MOST_FILES = 8
# Names of which every version was removed. A coordinator that was off meanwhile removes these, too;
# beyond so many it would list them again.
MOST_REMOVED = 256
_NEWEST = 1_000_000


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file by its content."""

    sha256: str
    size_bytes: int


ListedFiles = Mapping[str, ListedFile]


@dataclass(frozen=True, slots=True)
class Listed:
    """A model's versions that are installed, and the highest number that one ever had."""

    newest: int
    versions: Mapping[int, ListedFiles]


def read(entries: Entries) -> tuple[dict[str, Listed], list[str]]:
    """The models, and what is wrong with entries that are none: a name or a number may not lead out
    of a folder.
    """
    models, problems = {}, []
    for name, entry in entries.items():
        try:
            models[name] = _listed(name, entry)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"{name[:64]!r} in the cluster's state is not a model: {error}")
    return models, problems


def add(entries: Entries, name: str, number: int, files: ListedFiles) -> int:
    """Lists a version, under this number or the next one that is free; returns that. The same files
    under the same number are the same version, whoever lists it first.
    """
    told = {
        file: {"sha256": entry.sha256, "bytes": entry.size_bytes} for file, entry in files.items()
    }
    entry = entries.setdefault(name, {"newest": 0, "versions": {}})
    if entry["versions"].get(str(number)) == told:
        return number
    given = max(number, int(entry["newest"]) + 1)
    entry["newest"] = given
    entry["versions"][str(given)] = told
    return given


def drop(entries: Entries, name: str, version: int | None = None) -> tuple[int, ...]:
    """Removes a model, or one version of it; returns the removed versions.

    Raises:
        NotFound: it is not installed.
    """
    versions = entries.get(name, {}).get("versions", {})
    gone = sorted(map(int, versions)) if version is None else [version]
    if not versions or not {str(number) for number in gone} <= set(versions):
        which = f"model {name!r}" if not versions else f"version {version} of {name!r}"
        known = ", ".join(sorted(versions, key=int))
        raise NotFound(
            cause=f"no {which} is installed in the cluster",
            cure=f"It has {known}" if known else "`imbrex models list` shows what is",
        )
    for number in gone:
        del versions[str(number)]
    removed = [known for known, entry in entries.items() if not entry["versions"]]
    for forgotten in removed[MOST_REMOVED:]:
        del entries[forgotten]
    return tuple(gone)


def _listed(name: str, entry: Mapping[str, Any]) -> Listed:
    if not NAME.fullmatch(name):
        raise ValueError("its name cannot be used")
    newest = _number(entry["newest"])
    versions = {_number(int(number)): _files(told) for number, told in entry["versions"].items()}
    if any(not 0 < version <= newest for version in versions):
        raise ValueError("a version has a number beyond its newest")
    return Listed(newest, versions)


def _files(told: Any) -> dict[str, ListedFile]:
    files = {
        name: ListedFile(str(entry["sha256"]), _bytes(entry["bytes"]))
        for name, entry in told.items()
    }
    if MODEL_FILE not in files or len(files) > MOST_FILES:
        raise ValueError("a version has no model, or too many files")
    for name, file in files.items():
        if not NAME.fullmatch(name) or not HASH.fullmatch(file.sha256):
            raise ValueError("a file has a name or a hash that cannot be used")
    return files


def _number(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value <= _NEWEST:
        raise ValueError("a version has no number")
    return value


def _bytes(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value <= MAX_MODEL_BYTES:
        raise ValueError("a file has no size, or is too large")
    return value
