"""What a coordinator speaks by, and what computes beside it: this computer's own, or another's that
is emulated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.cluster.host_worker import WORKER
from protos.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class Hardware:
    """What messages cost, and the command that starts the worker on this computer."""

    endpoint: Endpoint = field(default_factory=Endpoint)
    worker: tuple[str, ...] = WORKER
