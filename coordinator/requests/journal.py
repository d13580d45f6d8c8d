"""The latest requests and plans, for those who count, show or trace them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from coordinator.answers import Answer
from coordinator.plans.plans import TookOver
from coordinator.requests.trace import Lived
from coordinator.tasks.timeline import Sketch, TaskTimes
from protos.errors import ImbrexError, NotFound

# The page shows the latest request; traces are asked for within the latest few.
LATEST = 64
# When a device turns out to compute wrong results, the answers of the last minutes are named; they
# take some kilobytes in total.
DOUBTED_S = 600.0
MOST_DOUBTED = 4096

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request to a loaded model, from its arrival to its answer or error.

    `model` is the name or path in the configuration. `arrived_s` and `ended_s` are monotonic times,
    as those of the tasks are; `ended_at` is in seconds since the epoch. Without an answer,
    `plan_version` is 0 and there are no tasks.
    """

    request_id: str
    model: str
    arrived_s: float
    ended_s: float
    answer: Answer | None = field(repr=False)
    tasks: tuple[TaskTimes, ...] = field(repr=False)
    error: ImbrexError | None
    ended_at: float = field(default_factory=time.time)
    sketch: Sketch = field(default=Sketch(), repr=False)

    @property
    def outcome(self) -> str:
        """`ok`, or the error's code."""
        return self.error.code if self.error else "ok"

    @property
    def plan_version(self) -> int:
        """Version of the plan that answered."""
        return self.answer.plan_version if self.answer else 0

    def lived(self, model: str, names: Mapping[str, str]) -> Lived:
        """What a trace shows of an answered request; `model` is the public name, `names` are the
        devices' names by id.
        """
        assert self.answer is not None
        return Lived(
            request_id=self.request_id,
            model=model,
            arrived_s=self.arrived_s,
            started_s=self.arrived_s + self.answer.timing.queue_s,
            ended_s=self.ended_s,
            tasks=self.tasks,
            sketch=self.sketch,
            names=names,
        )


JournalListener = Callable[["RequestRecord | TookOver"], None]


class Journal:
    """The latest requests, and the listeners for each new one. Answers are kept without their
    tensors.
    """

    def __init__(self) -> None:
        self._latest: deque[RequestRecord] = deque(maxlen=LATEST)
        self._took_part: deque[tuple[float, str, tuple[str, ...]]] = deque(maxlen=MOST_DOUBTED)
        self._listeners: list[JournalListener] = []

    @property
    def latest(self) -> tuple[RequestRecord, ...]:
        """Oldest first."""
        return tuple(self._latest)

    def find(self, request_id: str) -> RequestRecord:
        """The latest answered request of this id.

        Raises:
            NotFound: there was none, it has no answer, or it is too old.
        """
        answered = [record for record in self._latest if record.answer is not None]
        for ended in reversed(answered):
            if ended.request_id == request_id:
                return ended
        last = f"; the last is {answered[-1].request_id}" if answered else ""
        raise NotFound(
            cause=f"no answered request {request_id!r} is remembered",
            cure=f"Ask for one of the latest {LATEST}, by the request_id of its answer{last}",
        )

    def listen(self, listener: JournalListener) -> Callable[[], None]:
        """Calls `listener` after each request and new plan; the returned function
        unsubscribes it.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def add(self, ended: RequestRecord) -> None:
        """Records a request that has ended."""
        self._latest.append(ended)
        if ended.answer is not None:
            entry = (ended.ended_s, ended.request_id, ended.answer.devices)
            self._took_part.append(entry)
        fields = {
            "request": ended.request_id,
            "model": ended.model,
            "ms": round((ended.ended_s - ended.arrived_s) * 1e3, 1),
        }
        if ended.error is not None:
            log.warning("request failed", **fields, code=ended.error.code, cause=ended.error.cause)
        elif ended.answer is not None:
            devices = list(ended.answer.devices)
            log.info("request", **fields, plan=ended.plan_version, devices=devices)
        self.tell(ended)

    def doubt(self, device: str) -> None:
        """Logs the recent answers that a device took part in, which was found to compute
        wrongly.
        """
        since_s = time.monotonic() - DOUBTED_S
        doubted = [
            request
            for ended_s, request, devices in self._took_part
            if ended_s >= since_s and device in devices
        ]
        if doubted:
            log.error(
                "these answers may be wrong", device=device, requests=doubted, within_s=DOUBTED_S
            )

    def tell(self, entry: RequestRecord | TookOver) -> None:
        """A request has ended, or a plan took over: tells the listeners."""
        for listener in list(self._listeners):
            listener(entry)
