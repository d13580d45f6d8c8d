"""Interleaved measurements on a running cluster, over HTTP."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.answers import PlanChoice
from coordinator.serving.common import names
from imbrex.calls import Outputs, plain
from imbrex.client import Client, NoCoordinator
from models.check.agreement import nearest
from models.check.tolerance import PLAIN
from models.run.reference import EQUAL, Comparison, compare
from models.tensors.arrays import Arrays
from models.tensors.selection import Selections, as_read
from protos.errors import ImbrexError, NotFound

# The first request of a plan loads sessions and fills caches.
WARM_UP = 2


@dataclass(frozen=True, slots=True)
class RoundSample:
    """One request. `latency_s` is from input tensors to output tensors; `predicted_s` is the
    prediction for its plan as devices and links were just before.
    """

    round: int
    latency_s: float
    predicted_s: float
    plan_version: int
    request_id: str
    bytes: Mapping[str, int]
    comparison: Comparison


@dataclass(slots=True)
class PlanSamples:
    """One choice of a plan, and its measurements; `reason` says why it has none. `selections`: of
    these outputs only some entries are asked for.
    """

    label: str
    devices: int
    choice: PlanChoice
    plan: Mapping[str, Any] = field(default_factory=dict)
    samples: list[RoundSample] = field(default_factory=list)
    reason: str = ""
    selections: Selections = field(default_factory=dict)

    @property
    def latency_s(self) -> float:
        """The median."""
        return statistics.median(sample.latency_s for sample in self.samples)

    @property
    def predicted_s(self) -> float:
        """The median."""
        return statistics.median(sample.predicted_s for sample in self.samples)

    @property
    def comparison(self) -> Comparison:
        """The worst difference from the reference."""
        worst = EQUAL
        for sample in self.samples:
            worst = worst.worse(sample.comparison)
        return worst


@dataclass(slots=True)
class Rounds:
    """Sends one input in all cases, interleaved. The first case's first answer is the reference;
    `others` are as right, and each element has to agree with that of one of them.
    """

    client: Client
    model: str
    body: bytes
    reference: Arrays | None = None
    others: Sequence[Arrays] = ()

    def warm_up(self, cases: Sequence[PlanSamples], step: Callable[[str], None]) -> None:
        """Plans and prepares every case; sets the reason of cases without a plan."""
        for case in cases:
            step(f"{case.label} on {case.devices}: planning, first requests")
            try:
                self.client.plan(self.model, case.choice)
                for _ in range(WARM_UP):
                    found = self._ask(case)
                    self.reference = self.reference or found.arrays
                case.plan = plain(self.client.plan(self.model, case.choice))
            except (NoCoordinator, NotFound):  # the coordinator, or a strategy of this name
                raise
            except ImbrexError as error:
                case.reason = error.cause

    def measure(self, cases: Sequence[PlanSamples], repeat: int) -> Iterator[PlanSamples]:
        """Yields each case after each of its samples: a b a b."""
        assert self.reference is not None, "warm_up comes first"
        for number in range(repeat):
            for case in cases:
                case.plan = plain(self.client.plan(self.model, case.choice))
                predicted = self.client.plan_now(self.model, case.choice)
                found = self._ask(case)
                answer = found.origin
                if answer.plan_version != case.plan["version"]:  # the plan has been replaced
                    case.plan = plain(self.client.plan(self.model, case.choice))
                timing = answer.timing_ms
                case.samples.append(
                    RoundSample(
                        round=number,
                        latency_s=round((timing.total - timing.decode) / 1000, 6),
                        predicted_s=predicted.predicted_now_s,
                        plan_version=answer.plan_version,
                        request_id=answer.request_id,
                        bytes=plain(answer.bytes),
                        comparison=compare(found.arrays, self._expected(case, found.arrays)),
                    )
                )
                yield case

    def _ask(self, case: PlanSamples) -> Outputs:
        sparse = bool(case.selections)
        return self.client.outputs(self.model, self.body, names.NPZ, case.choice, sparse=sparse)

    def _expected(self, case: PlanSamples, arrays: Arrays) -> Arrays:
        assert self.reference is not None, "warm_up comes first"
        right = [self.reference, *self.others]
        # Some outputs are selections like the answer's.
        return nearest(
            arrays,
            [
                {
                    **expected,
                    **{
                        name: as_read(selection, arrays[name], expected[name], PLAIN)
                        for name, selection in case.selections.items()
                    },
                }
                for expected in right
            ],
        )
