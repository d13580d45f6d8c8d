"""The hardware that a worker runs on: this machine's, or that of an emulated one."""

from __future__ import annotations

from dataclasses import dataclass, field

from protos.endpoint import Endpoint
from worker.compute import Throttle
from worker.engines.base import Maker
from worker.engines.registry import engine_maker
from worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class Hardware:
    """The engine, the throttle of runs, and the cost of messages."""

    throttle: Throttle
    engine: Maker
    endpoint: Endpoint = field(default_factory=Endpoint)

    @classmethod
    def of(cls, settings: WorkerSettings) -> Hardware:
        """The hardware of this machine.

        Raises:
            BadConfiguration: no such engine.
        """
        return cls(Throttle(settings.pace), engine_maker(settings.engine))
