"""The data of an examination, and its findings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.answers import DeviceStatus, Finding, ModelStatus
from coordinator.devices.events import AddressSource
from coordinator.devices.other_coordinators import Other
from coordinator.trust.cluster_state import ClusterState
from protos import imbrex_pb2 as pb
from protos.rpc.channels import is_loopback
from protos.wire.facts import DeviceId, EngineShare, KeptPrograms

# A head that finds nothing on so many pictures reads something else than what is there.
LEAST_PICTURES = 100


def of_quarantine(status: DeviceStatus) -> Finding:
    """A device that is left out because of wrong results."""
    cure = "Run a memory test there; use its default clock rates; check its power supply"
    return Finding("quarantined", "error", status.name, status.reason, cure)


def of_no_exam(status: DeviceStatus, why: str) -> Finding:
    """A device whose results could not be compared with the coordinator's."""
    cause = f"it is not known whether it computes correctly: {why}"
    cure = "See the logs of its worker and of the coordinator, then try again"
    return Finding("not_examined", "warning", status.name, cause, cure)


def of_state(state: ClusterState) -> list[Finding]:
    """A store of the cluster's state that does not answer."""
    if not state.problem:
        return []
    cure = "Start the servers of that store, and check that this device reaches more than half of "
    cure += "them; meanwhile requests are answered, and changes of the cluster are refused"
    return [Finding("state_unavailable", "error", "", state.problem, cure)]


def of_models(awaited: Mapping[str, Mapping[str, str]], problems: Sequence[str]) -> list[Finding]:
    """Models that other coordinators have and this one lacks, by name and version, each with the
    reason; and what else keeps models from being the same everywhere.
    """
    cure = (
        "Start the coordinators that have it, and check that this device reaches them; if nobody "
    )
    cure += "has it any more, remove it (`imbrex models remove NAME --version N`), and add it again"
    missing = [
        Finding("model_missing", "warning", "", f"{name} {version} is not yet here: {why}", cure)
        for name, versions in awaited.items()
        for version, why in versions.items()
    ]
    cure = "Correct that; then the coordinators' models become the same again by themselves"
    return missing + [
        Finding("models_differ", "warning", "", problem, cure) for problem in problems
    ]


def of_heads(statuses: Iterable[ModelStatus]) -> list[Finding]:
    """What was assumed of models and nobody has confirmed, and those that find nothing at all or
    whose answers are not finite.
    """
    findings: list[Finding] = []
    for status in statuses:
        if status.not_finite_answers:
            cause = f"{status.not_finite_answers} answers of {status.name} had NaN or infinities "
            cause += "where something was to be read"
            cure = "If it computes in half precision (float16), try its float32 form (f32)"
            findings.append(Finding("not_finite_answers", "warning", "", cause, cure))
        if status.pictures >= LEAST_PICTURES and status.empty_pictures == status.pictures:
            cause = f"{status.name} has found nothing on any of {status.pictures} pictures: it "
            cause += f"may be no {status.task} model, or its pixels may be others"
            cure = f"Look at its outputs: imbrex models add FILE --name {status.name} "
            cure += "--task tensor, or with another --pixels"
            findings.append(Finding("finds_nothing", "warning", "", cause, cure))
        for what, why in status.assumed.items():
            cause = f"the {what} of {status.name} are assumed ({why})"
            cure = f"If that is right: imbrex models confirm {status.name}; else add it again with "
            cure += "the option that says what is"
            findings.append(Finding("assumed", "note", "", cause, cure))
    return findings


@dataclass(frozen=True, slots=True)
class Patient:
    """A connected device, as it was examined.

    `address` is where the coordinator reached it. `before` was its condition before it
    received and sent a little. `ahead_s`: how far its clock is ahead of the
    coordinator's, plus or minus half of `round_trip_s`. `unreached`: the other devices that it
    cannot reach, and why. `heard`: whether its mDNS announcements arrive. `coordinators`: others
    that it works for. `newer_members`: the generation of its list of members, if newer than the
    coordinator's. `engine` computes, `engine_speedup` times as fast as onnxruntime (0: not
    measured), and takes what its `limits` say (empty: any program). Of engines other than
    onnxruntime: `engines` are their shares of the programs, `kept` what they leave to onnxruntime,
    `refused_engines` what goes wrong with them.
    """

    id: DeviceId
    name: str
    address: str
    source: AddressSource
    version: str
    condition: pb.Condition
    before: pb.Condition | None = None
    ahead_s: float = 0.0
    round_trip_s: float = 0.0
    unreached: Mapping[DeviceId, str] = field(default_factory=dict)
    heard: bool = True
    celsius: float = 0.0
    coordinators: tuple[Other, ...] = ()
    newer_members: int = 0
    engine: str = "onnxruntime"
    engine_speedup: float = 0.0
    limits: str = ""
    engines: tuple[EngineShare, ...] = ()
    kept: tuple[KeptPrograms, ...] = ()
    refused_engines: str = ""

    @property
    def is_loopback(self) -> bool:
        """Whether only its own machine can reach it."""
        return is_loopback(self.address.rpartition(":")[0])

    @property
    def interface(self) -> pb.Interface | None:
        """The interface by which the coordinator reaches it."""
        ip = self.address.rpartition(":")[0].strip("[]")
        return next((i for i in self.condition.interfaces if ip in i.addresses), None)


@dataclass(frozen=True, slots=True)
class Absent:
    """An address that cannot be used, and why. `code` is that of the refusal, if it was refused;
    `near`: it is in a network of the coordinator. `name` and `gflops` (its rate) are those of the
    device that was there, and `seen` when, if one was since the start of the coordinator;
    `moved_to` is where this device is now.
    """

    address: str
    source: AddressSource
    code: str
    reason: str
    cure: str
    near: bool = True
    name: str = ""
    seen: str = ""
    gflops: float = 0.0
    moved_to: str = ""


@dataclass(frozen=True, slots=True)
class Examined:
    """All results of the examination. `listened`: whether mDNS is in use here; `others`: names of
    other clusters that were heard; `strangers`: addresses that are announced but at which no worker
    has answered, the oldest first.
    """

    version: str
    patients: tuple[Patient, ...]
    absent: tuple[Absent, ...] = ()
    unexamined: Mapping[str, str] = field(default_factory=dict)
    listened: bool = False
    others: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
