"""What daemons must be told to be the preset's devices, and what the lab then really emulates.

Before: what this machine's core does on VGG-16's convolutions, and what a message costs here; the
difference to the preset is what the daemons are told. After: the same convolutions on all devices
at once, a TCP stream each way on each link, a single message of a halo's size, empty messages and
large ones; off by more than a tenth is an error. Wires have only their own latency, which is told.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.lab import probes
from benchmarks.lab.cluster import Lab
from benchmarks.lab.network import HOST as HOST_ADDRESS
from coordinator.devices import children
from imbrex.demo.emulation.emulated_link import SlowEndpoint
from imbrex.demo.emulation.rate import Core
from imbrex.demo.emulation.settings import Computer, command
from imbrex.kinds.presets import Preset, server
from protos.errors import Unavailable
from protos.rpc.channels import HOST, Caller

TOLERANCE = 0.1
_START_S = 60.0
# Streams per link and direction: one may meet a full queue, and wait for what was dropped.
_STREAMS = 2
# How often, and how far apart, messages are measured before the lab starts.
_TURNS, _PAUSE_S = 9, 1.0
# How often those of all devices are measured, one after the other, once it runs.
_TURNS_OF_ALL = 5


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine does by itself: a core, and what a message costs each side."""

    core: Core
    message_ms: float
    byte_ns: float

    def computer(self, preset: Preset) -> Computer:
        """What to tell daemons; `preset` is scaled.

        Raises:
            Unavailable: this machine is slower than the preset.
        """
        pace = round(preset.gflops / self.core.gflops, 5)
        message_ms = preset.message_ms - self.message_ms
        if pace > 1 or message_ms < 0:
            raise Unavailable(
                cause=f"this machine's core ({self.core.gflops:.0f} GFLOP/s, {self.message_ms:.2f} "
                "ms per message) is slower than what it should emulate",
                cure="Choose a smaller --scale",
            )
        own = server(tls=preset.tls)
        return Computer(
            pace=pace,
            message_ms=round(message_ms, 4),
            byte_ns=round(max(0.0, preset.byte_ns - self.byte_ns), 4),
            task_ms=preset.task_ms,
            set_up_ms=preset.set_up_ms,
            weight_ns=preset.weight_ns,
            reference_s=self.core.reference_s,
            # As measured on a quiet machine like this one.
            peer_message_ms=round(max(0.0, preset.peer_message_ms - own.peer_message_ms), 4),
            peer_byte_ns=round(max(0.0, preset.peer_byte_ns - own.peer_byte_ns), 4),
            describe_ms=round(max(0.0, preset.describe_ms - own.describe_ms), 4),
            rates=preset.computing,
        )


@dataclass(frozen=True, slots=True)
class Emulated:
    """What the lab was measured to emulate, each device as if at the preset's clock, and what it
    should.
    """

    gflops: tuple[float, ...]
    down_mbps: tuple[float, ...]
    up_mbps: tuple[float, ...]
    alone_mbps: tuple[float, ...]
    message_ms: tuple[float, ...]
    latency_ms: tuple[float, ...]
    wanted: Preset

    def faults(self) -> list[str]:
        """What is off by more than the tolerance."""
        found = []
        for name, values, wanted in self._rows():
            worst = max(values, key=lambda value: abs(value / wanted - 1), default=wanted)
            if abs(worst / wanted - 1) > TOLERANCE:
                found.append(f"{name} is {worst:.3g} instead of {wanted:.3g}")
        return found

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{name}: {min(values):.3g} to {max(values):.3g}, wanted {wanted:.3g}"
            for name, values, wanted in self._rows()
            if values
        ]

    def json(self) -> dict[str, Any]:
        """Everything, rounded."""
        rows = {
            name: {"wanted": wanted, "measured": [round(value, 3) for value in values]}
            for name, values, wanted in self._rows()
        }
        told = {
            "latency_ms": {
                "wanted": self.wanted.latency_ms,
                "measured": [round(value, 3) for value in self.latency_ms],
            },
            "byte_ns_per_side": self.wanted.byte_ns,
            "task_ms": self.wanted.task_ms,
            "set_up_ms": self.wanted.set_up_ms,
            "describe_ms": self.wanted.describe_ms,
            "weight_ns": self.wanted.weight_ns,
        }
        return {**rows, **told}

    def _rows(self) -> list[tuple[str, tuple[float, ...], float]]:
        wanted = self.wanted
        return [
            (
                "GFLOP/s per device, all at once",
                self.gflops,
                probes.preset_gflops(wanted),
            ),
            ("Mbps from the host", self.down_mbps, wanted.mbps),
            ("Mbps to the host", self.up_mbps, wanted.mbps),
            ("Mbps of 64 KB alone", self.alone_mbps, wanted.mbps),
            ("ms per message and side", self.message_ms, wanted.message_ms),
        ]


def machine(core: Core, wanted: Preset) -> Machine:
    """Measures what messages cost here beside what they are charged, with a worker on loopback.
    They are charged what is wanted of them: a core that waits longer wakes up more slowly.
    """
    charged = SlowEndpoint(message_s=wanted.message_ms * 1e-3)
    with tempfile.TemporaryDirectory(prefix="imbrex-lab-machine-") as name:
        state = Path(name)
        file = state / "worker.toml"
        file.write_text(f"host = '127.0.0.1'\nport = 0\nmdns = false\nstate_dir = '{name}'\n")
        emulation = state / "emulation.toml"
        emulation.write_text(f"message_ms = {wanted.message_ms}\n")
        arguments = ["worker", "--config", str(file)]
        ready = state / "ready.json"
        child = children.start("machine", arguments, state, ready, command(emulation))
        try:
            children.wait_until(
                lambda: child.ready() is not None, "a worker has not started", [child], _START_S
            )
            address = str((child.ready() or {})["address"])
            message_s, byte_s = uvloop.run(_usual_seconds(address, Caller(HOST, endpoint=charged)))
        finally:
            children.stop([child])
    return Machine(core, message_s * 1e3 - wanted.message_ms, byte_s * 1e9)


async def _usual_seconds(address: str, caller: Caller) -> tuple[float, float]:
    """As `probes.message_seconds`, by the medians of some seconds: this machine's other tenants
    come and go.
    """
    found = []
    for _ in range(_TURNS):
        found.append(await probes.message_seconds(address, caller))
        await asyncio.sleep(_PAUSE_S)
    empty, each_byte = zip(*found, strict=True)
    return statistics.median(empty), statistics.median(each_byte)


def emulated(lab: Lab, wanted: Preset, host: Computer, clocks: Sequence[float]) -> Emulated:
    """Measures a running lab; `host` is what its coordinator was told."""
    network = lab.network
    down, up, alone, wire_s = [], [], [], []
    for number in range(1, lab.devices):
        there, own = network.device(number), network.address(number)
        down.append(_carried_mbps(network.host, there, own))
        up.append(_carried_mbps(there, network.host, HOST_ADDRESS))
        alone.append(probes.message_mbps(network.host, there, own))
        wire_s.append(probes.round_trip_s(network.host, there, own))
    slow = SlowEndpoint(message_s=host.message_ms * 1e-3, byte_s=host.byte_ns * 1e-9)
    caller = replace(lab.caller, endpoint=slow)
    rates, sides_s = uvloop.run(_through_daemons(lab.addresses, caller))
    # Two of a round trip's four sides are the host's.
    messages = [
        (a - b / 4) * 1e3 * 2 / (1 / clocks[0] + 1 / clock)
        for a, b, clock in zip(sides_s, wire_s, clocks[1:], strict=True)
    ]
    rates = [rate / clock for rate, clock in zip(rates, clocks, strict=True)]
    latency_ms = tuple(seconds * 1e3 / 2 for seconds in wire_s)
    return Emulated(
        tuple(rates), tuple(down), tuple(up), tuple(alone), tuple(messages), latency_ms, wanted
    )


def _carried_mbps(source: str, target: str, address: str) -> float:
    return max(probes.stream_mbps(source, target, address) for _ in range(_STREAMS))


async def _through_daemons(
    addresses: Sequence[str], caller: Caller
) -> tuple[list[float], list[float]]:
    """GFLOP/s of every device, and a message's median seconds at each side but the host's own."""
    turns = [
        [(await probes.message_seconds(address, caller))[0] for address in addresses[1:]]
        for _ in range(_TURNS_OF_ALL)
    ]
    sides_s = [statistics.median(side_s) for side_s in zip(*turns, strict=True)]
    return await probes.device_gflops(addresses, caller), sides_s
