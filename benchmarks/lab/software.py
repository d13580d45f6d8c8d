"""What Python, gRPC and sockets need of a server's core, as measured: presets charge multiples."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import Any

from benchmarks.report import ROOT

RESULTS = ROOT / "benchmarks" / "results"
MESSAGES, HANDOVER = RESULTS / "messages.json", RESULTS / "handover.json"


@dataclass(frozen=True, slots=True)
class Software:
    """Of one side: a message of the host and each of its bytes, a message between workers and each
    of its bytes, a task on its device (taken in, set up, and from when its input is full until it
    computes), and describing one at the host.
    """

    message_ms: float
    byte_ns: float
    peer_message_ms: float
    peer_byte_ns: float
    task_ms: float
    describe_ms: float

    def slower(self, times: float) -> dict[str, float]:
        """The same on a computer whose software is so many times slower."""
        return {name: round(getattr(self, name) * times, 4) for name in self.__slots__}


def software() -> Software:
    """What `benchmarks.messages` and `benchmarks.handover` found on a quiet machine."""
    transports = json.loads(MESSAGES.read_text())["transports"]
    found = json.loads(HANDOVER.read_text())
    starting_ms = statistics.median(each["full_to_start_ms"] for each in found["sizes"])
    task_ms = found["take_in_ms"] + found["set_up_ms"] + starting_ms
    host, peers = _of(transports["host"]), _of(transports["data"])
    return Software(*host, *peers, task_ms, found["describe_ms"])


def _of(sizes: list[dict[str, Any]]) -> tuple[float, float]:
    """(ms per message, ns per byte): the mean of both sides at the smallest size, and the slope to
    the largest.
    """
    (small, small_ms), (large, large_ms) = (
        (each["bytes"], (each["sender_ms"] + each["receiver_ms"]) / 2)
        for each in (sizes[0], sizes[-1])
    )
    return small_ms, max(0.0, large_ms - small_ms) / (large - small) * 1e6
