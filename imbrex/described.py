"""Shared by commands that plan locally: a network in memory, a cluster file, and output files."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from protos.daemon.files import read_text
from protos.errors import BadConfiguration, BadRequest

if TYPE_CHECKING:
    from coordinator.costs.cluster import Cluster
    from models.cut.units import Network


def network_of(model: str) -> "Network":
    """The network of a catalogue name or an `.onnx` file."""
    from models.catalogue import catalogue, loading

    return loading.network_of(catalogue.load(model))


def load_cluster(path: Path) -> "Cluster":
    """The cluster that a file describes: TOML, whose profiles are looked up beside it, or the
    report of `imbrex bench --report`, a `.json` that has them in it.

    Raises:
        BadRequest: unreadable, not TOML or no report, an unknown key (named), a wrong value, no
            device.
    """
    from coordinator.planning.cluster_file import parse_cluster

    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(
            cause=f"the cluster file {path} cannot be read ({error})",
            cure="Name a text file that you may read; `imbrex status --save FILE.toml` writes that "
            "of a running cluster.",
        ) from error
    if path.suffix == ".json":
        return cluster_of(*_reported(path, text), str(path))
    return parse_cluster(text, str(path), lambda name: (path.parent / name).read_bytes())


def cluster_of(text: str, profiles: Mapping[str, str], name: str) -> "Cluster":
    """The cluster of a file's text and of the profiles that it names; `name` is for errors.

    Raises:
        BadRequest: as `load_cluster`.
    """
    from coordinator.planning.cluster_file import parse_cluster

    def profile(wanted: str) -> bytes:
        if wanted not in profiles:
            raise FileNotFoundError(None, "it is not there", wanted)
        return profiles[wanted].encode()

    return parse_cluster(text, name, profile)


def _reported(path: Path, text: str) -> tuple[str, dict[str, str]]:
    """The cluster file in a report, and its profiles."""
    try:
        found = json.loads(text)["cluster"]
        file, profiles = found["file"], found["profiles"]
        if not all(isinstance(value, str) for value in (file, *profiles.values())):
            raise TypeError("not all of it is text")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRequest(
            cause=f"{path} is not a report of a cluster ({type(error).__name__}: {error})",
            cure="Make one with `imbrex bench --report`, or name a cluster file (.toml).",
        ) from error
    return file, profiles


def find_planners_here() -> None:
    """Lets `package.module:function` name a module in the current folder, after installed ones."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def require_writable(target: Path, option: str = "--save") -> None:
    """Says before the work what `write` would say after it; leaves nothing.

    Raises:
        BadConfiguration: the file cannot be written.
    """
    there = target.exists()
    try:
        target.open("a", encoding="utf-8").close()
    except OSError as error:
        raise _unwritable(target, option, error) from error
    if not there:
        target.unlink()


def write(target: Path, text: str, option: str = "--save") -> None:
    """Writes an output file of the user's.

    Raises:
        BadConfiguration: it cannot be written.
    """
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(target, option, error) from error


def _unwritable(target: Path, option: str, error: OSError) -> BadConfiguration:
    return BadConfiguration(
        cause=f"{target} cannot be written ({error.strerror})",
        cure=f"Give {option} a path in a folder that you may write to",
    )
