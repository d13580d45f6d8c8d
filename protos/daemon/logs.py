"""Where log lines go: standard error, so that standard output carries only a command's output."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

_shown: set[str] = set()


def is_shown(level: str) -> bool:
    """Whether lines of this level are written: asking costs a tenth of a line that is not."""
    return level.upper() in _shown


def log_to_stderr(*, as_json: bool = False, level: str = "info") -> None:
    """Configures log lines: JSON or text (coloured on a terminal), of `level` and above."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    _shown.clear()
    _shown.update(name for name, of in logging.getLevelNamesMapping().items() if of >= number)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # Looked up for each line: a test runner replaces the stream.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
