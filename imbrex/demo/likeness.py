"""What the demo's devices are like: Raspberry Pis, emulated in slow motion on this machine.

Nothing is shaped and no root is needed: computing is paced, and messages, bytes, tasks, weights and
the wire are charged as delays. At a scale of a quarter everything takes four times as long as on
the devices, so that what this machine itself needs for a message hardly counts; times are shown as
on the devices. Delays of the wire (its latency) are not emulated.
"""

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnxruntime

from imbrex.demo.duration import AIM_S, FEWER, Length, Requests
from imbrex.demo.emulation.rate import Core, measured_core
from imbrex.demo.emulation.settings import Computer
from imbrex.kinds.presets import KINDS, DeviceKind, Preset, load_kind
from imbrex.kinds.software import SERVER
from models.cut.program import sha256_of
from worker.engines.processor import cpu_fingerprint
from worker.engines.registry import candidates

# What all devices together may take of one core: other programs run beside a demo. If it would take
# too long otherwise, more.
_SHARE_OF_A_CORE, _MOST_OF_A_CORE = 0.4, 0.8
# Beside busy programs, what waits for a core gets it a millisecond or two late.
_LEAST_MESSAGE_MS = 5.0
# Of a fifth of a second.
_RUNS = 20
_BITS = 8
# A demo adds some thirty files of half a kilobyte.
_MOST_KERNELS = 10_000


@dataclass(frozen=True, slots=True)
class Likeness:
    """What workers and the coordinator are told. A device's second takes 1 / `scale` seconds."""

    name: str
    scale: float
    gflops: float
    worker: Computer
    host: Computer

    @property
    def kind(self) -> DeviceKind:
        """The kind of device."""
        return KINDS[self.name]


def likeness(name: str, devices: int, scale: float | None = None) -> Likeness:
    """So many devices of a kind on this machine, whose rate is measured; at `scale`, or as fast as
    goes beside other programs.
    """
    preset, core = load_kind(KINDS[name].preset), own_core()
    return told(name, preset, scale or scales(preset, devices, core.gflops)[0], core)


def own_core() -> Core:
    """A core of this machine, which is measured."""
    return measured_core(_RUNS)


def turns_in(cache: Path) -> Path:
    """Where emulated devices take turns, and keep what each kernel takes for the next demo."""
    processor = sha256_of(cpu_fingerprint().encode())[:12]
    kept = cache / f"kernels-of-{onnxruntime.__version__}-{processor}"
    if kept.is_dir() and sum(1 for _ in kept.iterdir()) > _MOST_KERNELS:
        shutil.rmtree(kept)
    return kept


def told(name: str, preset: Preset, scale: float, core: Core) -> Likeness:
    """What daemons are told on a machine with such cores."""
    wanted = preset.scaled(scale)
    # A byte crosses one wire: the host's, or, between workers, half of one at either end.
    wire_ns = _BITS * 1e3 / wanted.mbps
    message_ms = max(0.0, wanted.message_ms - SERVER.message_ms)
    worker = Computer(
        pace=round(wanted.gflops / core.gflops, 5),
        message_ms=round(message_ms, 4),
        byte_ns=round(wanted.byte_ns, 4),
        task_ms=wanted.task_ms,
        set_up_ms=wanted.set_up_ms,
        weight_ns=wanted.weight_ns,
        peer_message_ms=round(max(0.0, wanted.peer_message_ms - SERVER.peer_message_ms), 4),
        peer_byte_ns=round(wanted.peer_byte_ns + wire_ns / 2, 4),
        reference_s=core.reference_s,
        rates=wanted.computing.with_engines(candidates()),
    )
    host = Computer(
        pace=1.0,
        message_ms=worker.message_ms,
        byte_ns=worker.byte_ns + wire_ns,
        task_ms=0.0,
        describe_ms=round(max(0.0, wanted.describe_ms - SERVER.describe_ms), 4),
    )
    return Likeness(name, scale, preset.gflops, worker, host)


def scales(preset: Preset, devices: int, core_gflops: float) -> Sequence[float]:
    """Powers of two: the largest at which other programs do not disturb so many devices, and those
    above it at which this machine keeps up with them.
    """
    share = core_gflops / (devices * preset.gflops)
    least = min(1.0, _SHARE_OF_A_CORE * share, preset.message_ms / _LEAST_MESSAGE_MS)
    first, last = (
        math.floor(math.log2(scale)) for scale in (least, min(1.0, _MOST_OF_A_CORE * share))
    )
    return [2.0**power for power in range(first, max(first, last) + 1)]


def suited(preset: Preset, core_gflops: float, length: Length) -> tuple[float, Requests]:
    """The scale and the requests of a demo: those that leave most room to other programs of all by
    which it takes `AIM_S` at most, or the quickest.
    """
    possible = scales(preset, length.workers, core_gflops)
    for requests in FEWER:
        for scale in possible:
            if length.expected_s(scale, requests) <= AIM_S:
                return scale, requests
    return possible[-1], FEWER[-1]
