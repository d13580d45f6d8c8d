"""What the commands that plan here share: a network in memory, and files that they write."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from protos.errors import BadConfiguration

if TYPE_CHECKING:
    from models.units import Network


def network_of(model: str) -> Network:
    """The network of a catalogue name or an `.onnx` file."""
    from models import catalogue, loading

    return loading.network_of(catalogue.load(model))


def find_planners_here() -> None:
    """Lets `package.module:function` name a module of the folder that the user is in, behind all
    that is installed.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def write(target: Path, text: str, option: str = "--save") -> None:
    """Writes a file that the user named.

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
