"""The hardware that a worker runs on: this machine's, or that of an emulated one."""

from __future__ import annotations

from dataclasses import dataclass, field

from protos.errors import BadConfiguration
from protos.wire.endpoint import Endpoint
from worker.compute.compute import Throttle
from worker.engines import AUTO
from worker.engines.base import Engine, Place
from worker.engines.pick import pick_engine
from worker.engines.registry import DEFAULT, factory_of
from worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class WorkerHardware:
    """The throttle of runs, the name of the engine, and the cost of messages."""

    throttle: Throttle
    engine: str = DEFAULT
    endpoint: Endpoint = field(default_factory=Endpoint)

    @classmethod
    def of(cls, settings: WorkerSettings) -> WorkerHardware:
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
        if name != AUTO:
            factory_of(name)
        return cls(Throttle(settings.pace), name)

    def make_engine(self, place: Place) -> Engine:
        """The engine.

        Raises:
            BadConfiguration: it cannot be used here.
        """
        return pick_engine(self.engine, place)
