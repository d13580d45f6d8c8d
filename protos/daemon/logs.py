"""Where log lines go: standard error, so that standard output carries only a command's output."""

import logging
import sys
from typing import Any

import structlog


def log_to_stderr(*, as_json: bool = False, level: str = "info") -> None:
    """Configures log lines: JSON or text (coloured on a terminal), of `level` and above."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if as_json
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
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        # Looked up for each line: a test runner replaces the stream.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
