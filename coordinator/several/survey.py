"""Compares the models' folder with what the cluster's state lists."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.several.listed import Listed, ListedFiles
from coordinator.several.shared_store import SharedStore, files_of, is_as_marked
from protos.errors import BadRequest

Version = tuple[str, int]


@dataclass(slots=True)
class Survey:
    """Versions in the folder: those of the cluster, with the folder of each; those that it does not
    list (yet), with their files; those that were removed; those of the cluster that were changed
    here, and what is wrong with them; and what is wrong with others.
    """

    here: dict[Version, Path] = field(default_factory=dict)
    unlisted: dict[Version, ListedFiles] = field(default_factory=dict)
    removed: list[Version] = field(default_factory=list)
    edited: dict[Version, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def survey(store: SharedStore, models: Mapping[str, Listed]) -> Survey:
    """What is in the folder. Files are read only if they may have changed since they were marked as
    the cluster's.

    Raises:
        BadConfiguration, OSError: it cannot be read.
    """
    found = Survey()
    for name, installed in store.installed().items():
        for number, path in installed.versions.items():
            try:
                _see(store, (name, number), path.parent, models.get(name), found)
            except BadRequest as error:
                found.problems.append(f"{name} {number}: {error.cause}")
    return found


def _see(
    store: SharedStore, version: Version, folder: Path, known: Listed | None, found: Survey
) -> None:
    marked = store.marked(folder)
    wanted = known.versions.get(version[1]) if known else None
    is_fresh = marked is not None and is_as_marked(folder, marked)
    files = marked if marked is not None and is_fresh else files_of(folder)
    if wanted == files:
        if not is_fresh:
            store.mark(folder, files)
        found.here[version] = folder
    elif marked is not None and wanted is not None:
        found.edited[version] = (
            f"{version[0]} {version[1]} was changed here, and is another one at the other "
            "coordinators: add it as a new version, or delete its folder to get theirs"
        )
        found.here[version] = folder
    elif marked is not None and known is not None and version[1] <= known.newest:
        found.removed.append(version)
    else:
        found.unlisted[version] = files
