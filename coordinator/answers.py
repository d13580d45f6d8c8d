"""Choices of plans, answers, models and devices as plain values, as the coordinator's interfaces
take and show them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import BeforeValidator, PlainSerializer

from protos.errors import BadRequest, ImbrexError
from protos.wire.facts import ONNXRUNTIME

if TYPE_CHECKING:  # clients import this module, too, and do not need networks
    import numpy as np

    from coordinator.costs.regression import DeviceProfile
    from coordinator.tasks.plan import TrafficBytes
    from coordinator.tasks.timeline import Timing
    from models.cut.units import Network
    from models.tensors.precision import Wire
    from models.tensors.selection import Selections
    from models.vision.sidecar import Sidecar
# error: something does not work. warning: it works, but worse than it could. note: for information.
Severity = Literal["error", "warning", "note"]
State = Literal["ok", "error", "warning", "note"]
# As `protos.wire.facts` declares them.
Row = Mapping[str, str | int | float]
Fact = str | bool | int | float | Mapping[str, tuple[str, ...]] | tuple[Row, ...] | None


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


# JSON has no infinity: a value that is not known yet is null.
Known = Annotated[
    float,
    BeforeValidator(lambda given: math.inf if given is None else given),
    PlainSerializer(_or_none, return_type=float | None),
]


@dataclass(frozen=True, slots=True)
class Answer:
    """Outputs of one request (arrays by output name), and how they were computed. `decode_s` is the
    time from the bytes of its body to the model's input; it is not part of `timing`, since the
    request was not yet given to the cluster then.
    """

    request_id: str
    outputs: Mapping[str, np.ndarray] = field(repr=False)
    timing: Timing
    plan_version: int
    devices: tuple[str, ...]
    traffic: TrafficBytes
    retried_tasks: int = 0
    decode_s: float = 0.0


@dataclass(slots=True)
class Sightings:
    """How many pictures a model has answered, and on how many of them nothing was found; and how
    many of its answers, of pictures or not, had NaN or infinities where something was to be read.
    """

    pictures: int = 0
    empty: int = 0
    not_finite: int = 0


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model that can be used: its public name, and what it stands for. `sightings` is shared by
    its copies.
    """

    name: str
    source: str
    network: Network
    sidecar: Sidecar | None
    trained: bool
    sightings: Sightings = field(default_factory=Sightings, compare=False)

    @property
    def takes_pictures(self) -> bool:
        """Whether a picture can be its input."""
        return self.sidecar is not None and self.sidecar.input is not None

    @cached_property
    def assumed(self) -> Mapping[str, str]:
        """What nobody has confirmed of it, and from what it was guessed."""
        if self.sidecar is None:
            return {}
        return {str(what): why for what, why in self.sidecar.assumed.items()}

    @cached_property
    def selections(self) -> Selections:
        """What is read of its outputs to make predictions, where that is not everything."""
        if self.sidecar is None:
            return {}
        return self.sidecar.selections(self.network.graph.output_shapes)


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """A model's load in images per second: what arrives, and what its groups can answer."""

    groups: int = 1
    arrivals_per_s: float = 0.0
    capacity_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A row of the list of models; `held`: its plan was sent by a client. `version` is the public
    one, which the interfaces add. `assumed`: what nobody has confirmed of it. On `empty_pictures`
    of the `pictures` that it answered, nothing was found; `not_finite_answers` could not be read.
    """

    name: str
    ready: bool
    state: str
    task: str
    trained: bool
    plan_version: int
    held: bool = False
    load: LoadStatus = LoadStatus()
    weight_bytes: int = 0
    version: str = ""
    precision: str = "exact"
    assumed: Mapping[str, str] = field(default_factory=dict)
    pictures: int = 0
    empty_pictures: int = 0
    not_finite_answers: int = 0


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """A device, for people and scripts.

    `state` is connecting, ready, waiting (for another attempt), refused, or alias (another address
    of a ready device); for connected devices without work it is checking (its first results are
    compared with the coordinator's own), draining, drained, or quarantined; `withheld` is that
    state also while the device is away, and empty if it is used. The device computes `concurrency`
    tasks at once with `threads` threads each. Devices with equal `fingerprint` compute alike.
    `refused_results` counts messages that could not be a task's result; `audited_tasks` of its
    `tasks` were computed again, and `wrong_tasks` of these it had computed wrongly. A `celsius` of
    0 means unknown. `unreachable` names devices that it cannot send halos to, `shared_with` other
    coordinators that it works for, outside of this cluster; `others_share` is the share of its time
    in which it computes for coordinators other than this one. `facts` is all that the device says
    of itself (`protos.wire.facts`). Fields that only the device knows are empty while it is not
    connected.
    """

    id: str
    name: str
    address: str
    state: str
    reason: str
    source: str
    host: bool
    last_seen_s: Known
    cpu: str = ""
    cores: int = 0
    mhz: float = 0.0
    memory_bytes: int = 0
    pace: float = 1.0
    gflops: float = 0.0
    mbps: Known = 0.0
    profiled: bool = False
    correction: float = 1.0
    fingerprint: str = ""
    refused_results: int = 0
    withheld: str = ""
    tasks: int = 0
    audited_tasks: int = 0
    wrong_tasks: int = 0
    shared_with: tuple[str, ...] = ()
    others_share: float = 0.0
    celsius: float = 0.0
    throttled: bool = False
    unreachable: tuple[str, ...] = ()
    threads: int = 0
    concurrency: int = 0
    facts: Mapping[str, Fact] = field(default_factory=dict)

    @property
    def is_alias(self) -> bool:
        """Whether this is another address of a device that is listed with the one in use."""
        return self.state == "alias"


@dataclass(frozen=True, slots=True)
class ProfileStatus:
    """The measurement of a device's speed. `state`: unmeasured, waiting, measuring, measured,
    failed; `progress` of the current measurement in [0, 1].
    """

    device: str
    name: str
    state: str
    progress: float
    profile: DeviceProfile | None
    failure: ImbrexError | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """The best device running the whole model by its fastest engine (`ncnn+onnxruntime`: by each of
    these a half) with its best threads, and the seconds that it takes by onnxruntime, if that was
    measured.
    """

    device: str
    latency_s: float
    threads: int
    engine: str = ONNXRUNTIME
    onnxruntime_s: float | None = None


@dataclass(frozen=True, slots=True)
class PlanNow:
    """The seconds that a plan was predicted to take when it was made, and those that it would be
    predicted to take if it were made now, at the present speeds of its devices and links.
    """

    model: str
    plan_version: int
    predicted_latency_s: float
    predicted_now_s: float


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem; `device` is the device's name, empty for the cluster."""

    code: str
    severity: Severity
    device: str
    cause: str
    cure: str


@dataclass(frozen=True, slots=True)
class Check:
    """Something that was looked at on a device (`address` is where), what was seen, and whether it
    is in order.
    """

    device: str
    address: str
    what: str
    seen: str
    state: State


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was looked at, and the problems, the worst first."""

    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """Which plan a request wants: by default the one in force.

    `strategy` makes a plan with that strategy (empty: the coordinator's default), `devices` limits
    it to that many of the fastest devices (0: all), `plan` names a plan that was sent before, and
    `wire` is the encoding of maps (empty: the one that the model allows).
    """

    strategy: str = ""
    devices: int = 0
    plan: str = ""
    wire: Wire | Literal[""] = ""

    @classmethod
    def of(cls, strategy: str | None, devices: int | None, wire: str = "") -> PlanChoice:
        """From what a person typed; an unknown `wire` counts as empty."""
        from models.tensors.precision import WIRES

        known = next((choice for choice in WIRES if choice == wire), "")
        return cls(strategy or "", devices or 0, wire=cast("Wire", known))

    def __post_init__(self) -> None:
        if self.plan and (self.strategy or self.devices or self.wire):
            raise BadRequest(
                cause="a plan that was sent has its own strategy, devices and wire",
                cure="Give either `plan`, or strategy, devices and wire",
            )


IN_FORCE = PlanChoice()
