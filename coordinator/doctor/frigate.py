"""Whether a cluster answers Frigate's `zmq` detectors in time. Pure."""

import math
from dataclasses import dataclass

from coordinator.answers import Check, Finding

# Frigate's default `request_timeout_ms`.
TIMEOUT_S = 0.2
# The slowest of many answers, beside the prediction of one on idle devices.
_SLOWEST = 1.5
# Timeouts are told in steps of this.
_STEP_MS = 100


@dataclass(frozen=True, slots=True)
class InTime:
    """The judgement for `detectors` that each have one request open. `predicted_s` is the latency
    of one request on idle devices, `slowest_s` that of the slowest when all of them ask at once.
    """

    detectors: int
    predicted_s: float
    slowest_s: float

    @property
    def holds(self) -> bool:
        """Whether Frigate's default timeout is enough."""
        return self.slowest_s <= TIMEOUT_S

    @property
    def cure(self) -> str:
        """The setting that is enough."""
        timeout_ms = _STEP_MS * math.ceil(round(self.slowest_s * 1e3, 3) / _STEP_MS)
        return f"set request_timeout_ms: {max(round(TIMEOUT_S * 1e3), timeout_ms)} or more"

    @property
    def seen(self) -> str:
        """What the judgement is made from, for people."""
        predicted = (
            f"{self.predicted_s * 1e3:.0f} ms predicted, {self.slowest_s * 1e3:.0f} ms at most"
        )
        return f"{predicted} with {self.detectors} detector{'s' if self.detectors > 1 else ''}"

    def check(self) -> Check:
        """The row of the doctor's check list."""
        return Check("coordinator", "", "frigate", self.seen, "ok" if self.holds else "warning")

    def findings(self) -> list[Finding]:
        """The problem, if Frigate may give up before it is answered."""
        if self.holds:
            return []
        cause = f"an answer may take {self.slowest_s * 1e3:.0f} ms, but Frigate gives up after "
        cause += f"{TIMEOUT_S * 1e3:.0f} ms unless it is told otherwise, and then finds nothing"
        cure = f"In Frigate's detector, {self.cure}"
        return [Finding("frigate_timeout", "warning", "coordinator", cause, cure)]


def in_time(predicted_latency_s: float, detectors: int) -> InTime:
    """Judges a plan for this many detectors, 1 or more. Of n that ask at once the last waits for
    all others, at worst: every device that computes for one computes for the next one afterwards.
    """
    return InTime(detectors, predicted_latency_s, _SLOWEST * detectors * predicted_latency_s)
