"""`imbrex coordinator`: the daemon, with settings from flags, environment and file."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from coordinator.commands.described import find_planners_here
from coordinator.daemon import run
from coordinator.settings import CoordinatorSettings, load_settings


def serve(config: Path | None, flags: Mapping[str, Any]) -> int:
    """Runs until SIGTERM or Ctrl-C; the exit code.

    Raises:
        BadConfiguration: a setting, the state directory or the port cannot be used.
    """
    find_planners_here()
    settings = load_settings(dict(flags), config)
    _configure_logs(settings)
    asyncio.run(run(settings))
    return 0


def _configure_logs(settings: CoordinatorSettings) -> None:
    """Lines on standard error: JSON if asked for, else text, coloured on a terminal."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if settings.log == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
