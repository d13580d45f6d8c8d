"""Where a request's time went, from its trace.

The mean over the plan's devices of: computing; waiting for the first input; waiting between tasks;
and after the last task, while others compute or the answer is on its way. Computing divides into
what one device alone would need for its share (`ideal`), for what is computed more than once
(`redundant`), and the rest: small tiles run slower than large ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

_PER_S = 1e-6


@dataclass(frozen=True, slots=True)
class Where:
    """Seconds; together they are the latency."""

    ideal: float
    redundant: float
    slower_kernels: float
    first_input: float
    between_tasks: float
    after_last_task: float

    def json(self) -> dict[str, float]:
        """Rounded to tenths of a millisecond."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def where(trace: Mapping[str, Any], plan: Mapping[str, Any], baseline_s: float) -> Where:
    """Divides the latency of a traced request of a plan; `baseline_s` is one device's, alone."""
    bars = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    whole = [bar for bar in bars if bar["cat"] == "request"][-1]
    start, stop = whole["ts"], whole["ts"] + whole["dur"]
    devices: dict[str, list[tuple[float, float]]] = {}
    for bar in bars:
        if bar["cat"] == "devices":
            spans = devices.setdefault(bar["args"]["device"], [])
            spans.append((bar["ts"], bar["ts"] + bar["dur"]))
    count = len(devices)
    busy = sum(b - a for spans in devices.values() for a, b in spans) / count
    first = sum(min(a for a, _ in spans) - start for spans in devices.values()) / count
    last = sum(stop - max(b for _, b in spans) for spans in devices.values()) / count
    ideal = baseline_s / count
    redundant = ideal * plan["redundant_flop"] / plan["total_flop"]
    return Where(
        ideal=ideal,
        redundant=redundant,
        slower_kernels=busy * _PER_S - ideal - redundant,
        first_input=first * _PER_S,
        between_tasks=(whole["dur"] - busy - first - last) * _PER_S,
        after_last_task=last * _PER_S,
    )
