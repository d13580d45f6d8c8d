"""What a worker computes and speaks by: this computer's own, or another's that is emulated."""

from __future__ import annotations

from dataclasses import dataclass, field

from protos.endpoint import Endpoint
from worker.compute import Throttle
from worker.engines.base import Maker
from worker.engines.registry import engine_maker
from worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class Hardware:
    """How fast programs run, what messages cost, and which engine computes."""

    throttle: Throttle
    engine: Maker
    endpoint: Endpoint = field(default_factory=Endpoint)

    @classmethod
    def of(cls, settings: WorkerSettings) -> Hardware:
        """This computer's.

        Raises:
            BadConfiguration: there is no such engine.
        """
        return cls(Throttle(settings.pace), engine_maker(settings.engine))
