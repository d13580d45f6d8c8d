"""`imbrex coordinator`: the daemon, with settings from flags, environment and file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.daemon import run
from coordinator.settings import load_settings


def serve(config: Path | None, flags: Mapping[str, Any]) -> int:
    """Runs until SIGTERM or Ctrl-C; the exit code.

    Raises:
        BadConfiguration: a setting, the state directory or the port cannot be used.
    """
    asyncio.run(run(load_settings(dict(flags), config)))
    return 0
