"""The hardware that a worker runs on: this machine's, or that of an emulated one."""

from __future__ import annotations

from dataclasses import dataclass, field

from protos.errors import BadConfiguration
from protos.wire.endpoint import Endpoint
from worker.compute.compute import Throttle
from worker.engines import AUTO
from worker.engines.base import Maker
from worker.engines.registry import DEFAULT, engine_maker
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
            BadConfiguration: no such engine, or one that cannot be paced.
        """
        name = settings.engine
        if settings.pace < 1 and name == AUTO:
            name = DEFAULT
        if settings.pace < 1 and name != DEFAULT:
            raise BadConfiguration(
                cause=f"the engine {name!r} cannot be slowed down to a pace of {settings.pace}",
                cure=f"Set pace = 1, or engine = {DEFAULT}: the CPU time of others is not known",
            )
        return cls(Throttle(settings.pace), engine_maker(name))
