"""Shared by commands that plan locally: a network in memory, a cluster file, and output files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from protos.errors import BadConfiguration, BadRequest

if TYPE_CHECKING:
    from coordinator.costs.devices import Cluster
    from models.units import Network


def network_of(model: str) -> Network:
    """The network of a catalogue name or an `.onnx` file."""
    from models import catalogue, loading

    return loading.network_of(catalogue.load(model))


def load_cluster(path: Path) -> Cluster:
    """The cluster that a file describes. Profiles are looked up beside it.

    Raises:
        BadRequest: unreadable, not TOML, an unknown key (named), a wrong value, no device.
    """
    from coordinator.planning.cluster_file import parse_cluster

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(
            cause=f"the cluster file {path} cannot be read ({error})", cure="Check its path."
        ) from error
    return parse_cluster(text, str(path), lambda name: (path.parent / name).read_bytes())


def find_planners_here() -> None:
    """Lets `package.module:function` name a module in the current folder, after installed ones."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def write(target: Path, text: str, option: str = "--save") -> None:
    """Writes an output file of the user's.

    Raises:
        BadConfiguration: it cannot be written.
    """
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadConfiguration(
            cause=f"{target} cannot be written ({error.strerror})",
            cure=f"Give {option} a path in a folder that you may write to",
        ) from error
