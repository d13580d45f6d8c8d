"""Which plan a request wants: the one in force, one by a strategy, or one that was sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from protos.errors import BadRequest

if TYPE_CHECKING:
    # A client of a coordinator does not need the models package, and starts sooner without it.
    from models.tensors.precision import Wire


@dataclass(frozen=True, slots=True)
class Choice:
    """How a request chooses its plan; by default it takes the plan in force.

    `strategy` makes a plan with that strategy (empty: the coordinator's default), `devices` limits
    it to that many of the fastest devices (0: all), `plan` names a plan that was sent before, and
    `wire` is the encoding of maps (empty: the one that the model allows).
    """

    strategy: str = ""
    devices: int = 0
    plan: str = ""
    wire: Wire | Literal[""] = ""

    @classmethod
    def of(cls, strategy: str | None, devices: int | None, wire: str = "") -> Choice:
        """From what a person typed; an unknown `wire` counts as empty."""
        from models.tensors.precision import WIRES

        known = next((each for each in WIRES if each == wire), "")
        return cls(strategy or "", devices or 0, wire=cast("Wire", known))

    def __post_init__(self) -> None:
        if self.plan and (self.strategy or self.devices or self.wire):
            raise BadRequest(
                cause="a plan that was sent has its own strategy, devices and wire",
                cure="Give either `plan`, or strategy, devices and wire",
            )


IN_FORCE = Choice()
