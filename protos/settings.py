"""The settings of daemons in TOML files."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from protos.errors import BadConfiguration


def read_settings(file: Path, daemon: Literal["coordinator", "worker"]) -> dict[str, Any]:
    """What a file says to a daemon: the table of its name, if there is one, else all of the file.
    So one file may serve both daemons.

    Raises:
        BadConfiguration: it cannot be read, or is no TOML.
    """
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadConfiguration(
            cause=f"the settings file {file} cannot be read: {error}",
            cure="Correct the file, or leave it out",
        ) from error
    section = document.get(daemon)
    return dict(section) if isinstance(section, dict) else document
