"""`imbrex coordinator`: the daemon, with settings from flags, environment and file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop

from coordinator.daemon import run
from coordinator.settings import load_settings
from imbrex.described import find_planners_here
from protos.logs import log_to_stderr


def serve(config: Path | None, flags: Mapping[str, Any]) -> int:
    """Runs until SIGTERM or Ctrl-C; returns the exit code.

    Raises:
        BadConfiguration: a setting, the state directory or the port cannot be used.
    """
    find_planners_here()
    settings = load_settings(dict(flags), config)
    log_to_stderr(as_json=settings.log == "json")
    uvloop.run(run(settings))
    return 0
