"""Which plan a request wants: the one in force, one by a strategy, or one that was sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from coordinator.planning.devices import Cluster, Planner
from coordinator.planning.strategies import STRATEGIES, names, strategy
from models.wire import WIRES, Wire
from protos.errors import BadRequest, NotFound


@dataclass(frozen=True, slots=True)
class Choice:
    """What a request says of its plan; by default nothing: the plan in force.

    `strategy` plans by it (empty: by the coordinator's own), `devices` over so many of the
    fastest (0: over all), `plan` names a plan that was sent before. `wire` is what maps may travel
    as (empty: what the model allows).
    """

    strategy: str = ""
    devices: int = 0
    plan: str = ""
    wire: Wire | Literal[""] = ""

    @classmethod
    def of(cls, strategy: str | None, devices: int | None, wire: str = "") -> Choice:
        """From what a person typed; `wire` is one of the wires, or empty."""
        known = next((each for each in WIRES if each == wire), "")
        return cls(strategy or "", devices or 0, wire=cast("Wire", known))

    def __post_init__(self) -> None:
        if self.plan and (self.strategy or self.devices or self.wire):
            raise BadRequest(
                cause="a plan that was sent has its own strategy, devices and wire",
                cure="Name either the plan, or how to plan",
            )


IN_FORCE = Choice()


def planner_of(own: Sequence[str], name: str) -> Planner:
    """The planner that a request names; empty for the first of our `own`. A request can't have
    this process import anything: `package.module:function` is for whoever starts the coordinator.

    Raises:
        NotFound: neither a built-in strategy nor one of `own`.
    """
    chosen = name or own[0]
    # What packages bring is looked for on the disk: not for the names that nearly everybody uses.
    if chosen in STRATEGIES or chosen in own:
        return strategy(chosen)
    known = dict.fromkeys((*names(), *own))
    if chosen not in known:
        raise NotFound(
            cause=f"there is no strategy {chosen!r} here",
            cure=f"Known are {', '.join(known)}; another is named to "
            "`imbrex coordinator --planner`",
        )
    return strategy(chosen)


def fastest(cluster: Cluster, count: int) -> Cluster:
    """The cluster's `count` fastest devices, the host before its equals; all of them for 0.

    Raises:
        BadRequest: there are not so many.
    """
    if not count:
        return cluster
    if not 0 < count <= len(cluster.devices):
        raise BadRequest(
            cause=f"a plan for {count} devices was asked for, there are {len(cluster.devices)}",
            cure="Ask for fewer, or see `imbrex status` why some are missing",
        )
    # Names break ties, numbers in them in order: the same devices every time.
    ranked = sorted(
        cluster.devices, key=lambda each: (-each.speed, not each.host, len(each.name), each.name)
    )
    return replace(cluster, devices=tuple(ranked[:count]))
