"""`imbrex coordinator`: the daemon, with settings from flags, environment and file."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop

from coordinator.serving.daemon import run
from coordinator.settings import CoordinatorSettings
from imbrex.described import find_planners_here
from protos.daemon.files import alone_in
from protos.daemon.logs import log_to_stderr


def serve(
    config: Path | None, flags: Mapping[str, Any], token: str = "", *, join_only: bool = False
) -> int:
    """Joins a cluster if there is a token. Then runs until SIGTERM or Ctrl-C, unless `join_only`;
    returns the exit code.

    Raises:
        BadConfiguration: a setting, the state directory or the port cannot be used.
        ImbrexError: the token cannot be used, or the other coordinator refuses.
    """
    find_planners_here()
    settings = CoordinatorSettings.load(config, flags)
    log_to_stderr(as_json=settings.log == "json", level=settings.log_level)
    if token:
        from coordinator.trust.joining import join

        with alone_in(settings.state_dir, "coordinator"):
            asyncio.run(join(settings.state_dir, token))
    if join_only:
        return 0
    gc.freeze()  # full collections, which pause everything, pass over what is imported
    uvloop.run(run(settings))
    return 0
