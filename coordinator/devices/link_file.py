"""Measurements of each device's link, saved for the next start, until the link is probed again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard

import structlog

from coordinator.costs.cluster import Link
from coordinator.trust.cluster_state import read_entries
from protos.daemon.files import write_atomically
from protos.errors import BadConfiguration
from protos.wire.facts import DeviceId

LINKS_FILE = "links.json"
_FIELDS = ("bytes_per_s", "message_s", "latency_s")

log = structlog.get_logger(__name__)


def load_links(state_dir: Path) -> dict[DeviceId, Link]:
    """The last known links, without the costs of their ends, which are measured again. A file that
    cannot be used is ignored.
    """
    try:
        entries = read_entries(state_dir / LINKS_FILE)
    except BadConfiguration as error:
        log.warning("saved link measurements are ignored", cause=error.cause)
        return {}
    links = {}
    for device, entry in entries.items():
        values = [value for field in _FIELDS if _is_good(value := entry.get(field))]
        if len(values) == len(_FIELDS) and values[0] > 0:
            bytes_per_s, message_s, latency_s = values
            links[DeviceId(device)] = Link(bytes_per_s, message_s, latency_s)
    return links


def _is_good(value: object) -> TypeGuard[float]:
    return isinstance(value, float) and math.isfinite(value) and value >= 0


def save_links(state_dir: Path, links: Mapping[DeviceId, Link]) -> None:
    """Replaces the file; a disk that is full costs a line of the log."""
    entries = {
        device: {field: float(getattr(link, field)) for field in _FIELDS}
        for device, link in links.items()
    }
    try:
        write_atomically(state_dir / LINKS_FILE, json.dumps(entries, indent=1).encode() + b"\n")
    except OSError as error:
        log.warning("link measurements cannot be saved", cause=str(error))
