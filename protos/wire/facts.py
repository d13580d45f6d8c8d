"""What a worker reports about itself. A fact is declared here and on the wire (`DeviceFacts`, under
the same name), and determined in `worker/machine/device_identity.py`; nothing else has to know.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields
from typing import NewType, Self

from protos import imbrex_pb2 as pb
from protos.errors import BadConfiguration, PeerViolation
from protos.wire.limits import Limits

DeviceId = NewType("DeviceId", str)

# The engine that computes every program.
ONNXRUNTIME = "onnxruntime"
# Our own device ids are much shorter; this bounds the keys of every table.
MAX_ID_CHARS = 64
# Of engines, and of reasons.
_MOST_ROWS = 64
# One concurrent task for each core of the largest computers.
MOST_AT_ONCE = 256
# FLOPs per clock and core of an older worker, which does not report `gflops`.
_FLOP_PER_CLOCK = 2.0


@dataclass(frozen=True, slots=True)
class EngineShare:
    """The programs that an engine other than onnxruntime computes, `speedup` times as fast as
    onnxruntime did.
    """

    name: str
    programs: int
    speedup: float


@dataclass(frozen=True, slots=True)
class KeptPrograms:
    """Programs that onnxruntime keeps for one reason, though nothing is wrong; `is_lacking`: other
    engines do not know how to compute them.
    """

    why: str
    programs: int
    is_lacking: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """One worker's description of itself at its last Hello.

    `memory_bytes` is what it may use, `pace` the share of a core that computation may take (1 =
    unpaced), `boot_id` tells apart two machines with the same, copied id. Its `engine` of version
    `runtime` computes `concurrency` tasks at once, each with `threads` threads, on its `processor`;
    `gflops` is an estimate until it is measured, `tolerance` how far its results may be from
    onnxruntime's, relative to the largest magnitude. An engine other than onnxruntime computes
    `engine_programs` so far, `speedup` times as fast as onnxruntime did (0: not measured), of
    which `engines` has the share of each; `kept` are those that onnxruntime computes because no
    other takes them or is faster, `refused` names what goes wrong with other engines, and why.
    `limits`: the engine computes whole networks only, and of these what they take; None: it takes
    any program.
    """

    id: DeviceId
    name: str
    machine: str
    cpu: str
    cores: int
    mhz_now: float
    mhz_max: float
    memory_bytes: int
    pace: float
    runtime: str
    boot_id: str
    threads: int
    concurrency: int = 1
    celsius: float = 0.0
    throttled: bool = False
    engine: str = ONNXRUNTIME
    processor: str = "cpu"
    gflops: float = 0.0
    tolerance: float = 1e-5
    engine_programs: int = 0
    speedup: float = 0.0
    refused: str = ""
    limits: Limits | None = None
    engines: tuple[EngineShare, ...] = ()
    kept: tuple[KeptPrograms, ...] = ()

    @classmethod
    def of(cls, message: pb.DeviceFacts) -> Self:
        """The facts in a HelloReply; facts that an older worker does not send take the values of
        its version.

        Raises:
            PeerViolation: no usable id, or impossible numbers.
        """
        if not 0 < len(message.id) <= MAX_ID_CHARS:
            raise _violation(f"a device id of {len(message.id)} characters")
        if message.cores < 1 or not 0 < message.pace <= 1:
            raise _violation(f"{message.cores} cores at a pace of {message.pace}")
        if message.concurrency > MOST_AT_ONCE:
            raise _violation(f"{message.concurrency} tasks at once")
        for speedup in (message.speedup, *(share.speedup for share in message.engines)):
            if not 0 <= speedup < float("inf"):
                raise _violation(f"an engine {speedup} times as fast as onnxruntime")
        if max(len(message.engines), len(message.kept)) > _MOST_ROWS:
            raise _violation(f"{len(message.engines)} engines")
        if not 0 <= message.gflops < float("inf") or not 0 <= message.tolerance < float("inf"):
            raise _violation(f"{message.gflops} GFLOP/s within {message.tolerance}")
        told = {field.name: getattr(message, field.name) for field in fields(cls)}
        told["limits"] = _limits(message.limits) if message.HasField("limits") else None
        told["engines"] = tuple(
            EngineShare(share.name, share.programs, share.speedup) for share in message.engines
        )
        told["kept"] = tuple(
            KeptPrograms(kept.why, kept.programs, kept.is_lacking) for kept in message.kept
        )
        guess = max(message.mhz_max, 1000.0) * 1e-3 * _FLOP_PER_CLOCK * message.cores * message.pace
        usual = {"name": message.id, "gflops": guess, **_USUAL}
        return cls(**{name: value or usual.get(name, value) for name, value in told.items()})

    def message(self) -> pb.DeviceFacts:
        """The facts as a message."""
        return pb.DeviceFacts(**asdict(self))

    @property
    def fingerprint(self) -> str:
        """Equal for devices that compute alike: the key of a shared profile. Neither the id, nor
        the present frequency, nor the memory is part of it; the highest frequency is rounded,
        because virtual machines report it differently every time.
        """
        parts = (
            self.machine,
            self.cpu,
            self.cores,
            round(self.mhz_max, -2),
            self.threads,
            round(self.pace, 4),
            self.runtime,
            *((self.engine, self.processor) if self.engine != _USUAL["engine"] else ()),
        )
        return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


# Fields with a default were added later.
_USUAL = {field.name: field.default for field in fields(Facts) if field.default}


def _limits(message: pb.DeviceFacts.Limits) -> Limits:
    try:
        return Limits(
            *(tuple(listed) for listed in (message.networks, message.shapes, message.dtypes))
        )
    except BadConfiguration as error:
        raise PeerViolation(cause=error.cause, cure=error.cure) from error


def _violation(what: str) -> PeerViolation:
    return PeerViolation(cause=f"a worker introduced itself with {what}")
