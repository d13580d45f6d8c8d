"""A calibrated lab, and what one run in it is about."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lab.calibrate import Emulated, emulated, machine
from benchmarks.lab.cluster import Lab, Say, lab, wait_until_measured
from benchmarks.lab.network import QUEUE_BYTES
from benchmarks.published import Case
from coordinator.costs import Medium
from imbrex.demo.emulation.rate import measured_core
from imbrex.demo.emulation.settings import Computer
from imbrex.kinds.presets import Preset, load_kind
from imbrex.kinds.software import Software

CORE_RUNS = 30
# What all devices together may take of this machine's cores while everybody computes: messages,
# the kernel's buckets and the coordinator need the rest.
_MOST_CORES = 0.6
# A bandwidth that the streams of eight workers fill here with half of the cores to spare.
_MOST_MBPS = 125.0
# At twice the speed, what this machine's Python and kernel need themselves weighs twice as much,
# and an event loop's wakeups (a millisecond apart) are coarse for messages.
_MOST_SCALE = 1.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What to emulate; without a medium the preset's, without a scale the one that fits. A `case`
    gives the devices clocks of their own, as in AOFL's Table 2. A port of the switch drops what
    does not fit into `queue_bytes`.
    """

    preset: str
    devices: int
    medium: Medium | None = None
    scale: float | None = None
    case: Case | None = None
    queue_bytes: int = QUEUE_BYTES

    @property
    def name(self) -> str:
        """For files and people."""
        medium = self.medium or load_kind(self.preset).medium
        case = f"-case-{self.case.name}" if self.case else ""
        return f"{Path(self.preset).stem}-{medium}-{self.devices}{case}"

    @property
    def clocks(self) -> tuple[float, ...]:
        """Of the devices, as shares of the preset's; the host's first."""
        return self.case.ghz if self.case else (1.0,) * self.devices


@dataclass(frozen=True, slots=True)
class Bench:
    """A running lab. `wanted` is the preset at `scale`, `found` what was measured of it."""

    lab: Lab
    setting: Setting
    scale: float
    wanted: Preset
    found: Emulated

    def about(self) -> dict[str, Any]:
        """What belongs beside every result."""
        return {
            "preset": Path(self.setting.preset).stem,
            "medium": self.wanted.medium,
            "devices": self.lab.devices,
            "clocks": self.setting.clocks,
            "scale": self.scale,
            "discovery": "static list",
            "emulated": self.found.json(),
            "faults": self.found.faults(),
        }

    def lines(self) -> list[str]:
        """The same for people."""
        return [
            f"{self.setting.name}, {self.scale:g} times as fast as it is; workers are listed, not "
            "found over mDNS",
            *(f"  {line}" for line in self.found.lines()),
            *(f"  OFF: {fault}" for fault in self.found.faults()),
        ]


@contextmanager
def bench(setting: Setting, say: Say) -> Iterator[Bench]:
    """Brings up a lab whose coordinator has measured everything, and measures what it emulates.

    Raises:
        BadConfiguration: not root, no iproute2.
        Unavailable: this machine cannot emulate it.
    """
    preset = load_kind(setting.preset)
    if setting.medium:
        preset = preset.model_copy(update={"medium": setting.medium})
    say("measuring this machine")
    core = measured_core(CORE_RUNS)
    devices = max(setting.devices, sum(setting.clocks))
    scale = setting.scale or fitting_scale(preset, devices, core.gflops)
    wanted = preset.scaled(scale)
    usual = machine(core, wanted).computer(wanted)
    computers = [_clocked(usual, clock) for clock in setting.clocks]
    with lab(wanted, computers, say, setting.queue_bytes) as running:
        # The coordinator's own measurements would share the wires with ours.
        wait_until_measured(running, say)
        say("calibrating")
        found = emulated(running, wanted, computers[0], setting.clocks)
        yield Bench(running, setting, scale, wanted, found)


def fitting_scale(preset: Preset, devices: float, core_gflops: float) -> float:
    """The largest power of two at which so many devices leave this machine headroom; one that is
    twice as fast is two.
    """
    by_cores = _MOST_CORES * core_gflops / (devices * preset.gflops)
    most = min(_MOST_SCALE, by_cores, _MOST_MBPS / preset.mbps)
    return float(2.0 ** math.floor(math.log2(most)))


def _clocked(computer: Computer, clock: float) -> Computer:
    """The same computer at another clock: kernels and Python are slower alike, memory isn't.
    One that is faster than the preset's is another computer, with faster memory.
    """
    assert computer.rates is not None, "a preset has rates"
    return computer.model_copy(
        update={
            **{name: getattr(computer, name) / clock for name in Software.model_fields},
            "pace": computer.pace * clock,
            "rates": computer.rates.scaled(clock, max(1.0, clock)),
            "weight_ns": computer.weight_ns / max(1.0, clock),
        }
    )
