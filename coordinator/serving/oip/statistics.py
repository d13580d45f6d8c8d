"""The statistics extension: cumulative counts and durations per model, since the start.

`compute_input` is the time in which inputs were on their way to devices and nothing else happened,
`compute_infer` that in which a device computed, `compute_output` that in which only outputs were on
their way back.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from coordinator.plans.plans import TookOver
from coordinator.requests.journal import RequestRecord

_PHASES = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(slots=True)
class _Duration:
    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.ns += round(seconds * 1e9)

    def as_json(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


@dataclass(slots=True)
class _Model:
    last_ms: int = 0
    success: _Duration = field(default_factory=_Duration)
    fail: _Duration = field(default_factory=_Duration)
    phases: dict[str, _Duration] = field(
        default_factory=lambda: {name: _Duration() for name in _PHASES}
    )


class Statistics:
    """Counts every request that ends, over any interface."""

    def __init__(self) -> None:
        self._models: defaultdict[str, _Model] = defaultdict(_Model)

    def count(self, ended: RequestRecord | TookOver) -> None:
        """Counts one request."""
        if isinstance(ended, TookOver):
            return
        model, seconds = self._models[ended.model], ended.ended_s - ended.arrived_s
        if ended.answer is None or ended.error is not None:
            model.fail.add(seconds)
            return
        timing = ended.answer.timing
        model.last_ms = round(ended.ended_at * 1000)
        model.success.add(seconds)
        spent = (timing.queue_s, timing.scatter_s, timing.compute_s, timing.gather_s)
        for phase, phase_s in zip(_PHASES, spent, strict=True):
            model.phases[phase].add(phase_s)

    def of(self, source: str, name: str, version: str) -> dict[str, Any]:
        """A model's counts."""
        model = self._models.get(source, _Model())
        phases = {phase: spent.as_json() for phase, spent in model.phases.items()}
        nothing = _Duration().as_json()
        batch = {phase: phases[phase] for phase in _PHASES if phase != "queue"}
        return {
            "name": name,
            "version": version,
            "last_inference": model.last_ms,
            "inference_count": model.success.count,
            "execution_count": model.success.count,
            "inference_stats": {
                "success": model.success.as_json(),
                "fail": model.fail.as_json(),
                **phases,
                "cache_hit": nothing,
                "cache_miss": nothing,
            },
            "batch_stats": [{"batch_size": 1, **batch}] if model.success.count else [],
        }
