"""The verdict on a task that was computed again."""

from dataclasses import dataclass

from coordinator.audit.case import Case
from coordinator.audit.job import OutputDifference
from coordinator.tasks.events import RequestId
from protos.wire.facts import DeviceId


@dataclass(frozen=True, slots=True)
class Verdict:
    """A task was computed again here. `difference` is relative to the largest magnitude."""

    request: RequestId
    model: str
    device: DeviceId
    task: int
    tensor: str
    difference: float
    wrong: bool

    @classmethod
    def of(cls, case: Case, worst: OutputDifference) -> "Verdict":
        """The verdict on a case with this outcome."""
        return cls(
            case.request,
            case.model,
            case.device,
            case.task,
            worst.tensor,
            worst.difference,
            worst.is_wrong(case.tolerance),
        )

    def __str__(self) -> str:
        return (
            f"task {self.task} of {self.model} (request {self.request}) is off by "
            f"{self.difference:.2g} of the largest magnitude of {self.tensor!r}"
        )
