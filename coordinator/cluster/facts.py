"""What a worker says about itself, as plain data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from coordinator.tasks.plan import DeviceId
from protos import imbrex_pb2 as pb
from protos.errors import PeerViolation

# A device id is made by us and is much shorter; this bounds keys in every table.
MAX_ID_CHARS = 64
# A task at once for each core of the largest computers.
MOST_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Facts:
    """One worker's description of itself at its last Hello.

    `memory_bytes` is what it may use, `pace` the share of a core that computation may take
    (1 = unpaced), `boot_id` tells two machines with one copied id apart. It computes `concurrency`
    tasks at once, each with `threads` threads.
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

    @classmethod
    def of(cls, message: pb.DeviceFacts) -> Facts:
        """The facts in a HelloReply.

        Raises:
            PeerViolation: without a usable id, or with numbers that no machine has.
        """
        if not 0 < len(message.id) <= MAX_ID_CHARS:
            raise _violation(f"a device id of {len(message.id)} characters")
        if message.cores < 1 or not 0 < message.pace <= 1:
            raise _violation(f"{message.cores} cores at a pace of {message.pace}")
        if message.concurrency > MOST_AT_ONCE:
            raise _violation(f"{message.concurrency} tasks at once")
        return cls(
            id=DeviceId(message.id),
            name=message.name or message.id,
            machine=message.machine,
            cpu=message.cpu,
            cores=message.cores,
            mhz_now=message.mhz_now,
            mhz_max=message.mhz_max,
            memory_bytes=message.memory_bytes,
            pace=message.pace,
            runtime=message.runtime,
            boot_id=message.boot_id,
            threads=message.threads,
            concurrency=message.concurrency or 1,
            celsius=message.celsius,
            throttled=message.throttled,
        )

    @property
    def fingerprint(self) -> str:
        """Equal for devices that compute alike: the key of a shared profile. Neither the id, nor
        the frequency of this moment, nor the memory takes part; the highest frequency is rounded,
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
        )
        return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


def _violation(what: str) -> PeerViolation:
    return PeerViolation(
        cause=f"a worker introduced itself with {what}",
        cure="Run the same version of imbrex on every device",
    )
