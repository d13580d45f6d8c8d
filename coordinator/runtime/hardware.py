"""The hardware of a coordinator: this computer, or one that is emulated."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.cluster.host_worker import WORKER
from protos.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class Hardware:
    """The cost of messages, and the command that starts the worker on this computer."""

    endpoint: Endpoint = field(default_factory=Endpoint)
    worker: tuple[str, ...] = WORKER
