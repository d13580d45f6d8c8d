"""The page's server-sent events: `state` every second, and `request` as each one ends; at first
`recent`, what was answered before.
"""

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from coordinator.answers import DeviceStatus
from coordinator.plans.plans import TookOver
from coordinator.requests.journal import RequestRecord
from coordinator.serving.page.day import FILE, Day
from protos.errors import Unavailable
from protos.wire.limits import Limits

if TYPE_CHECKING:
    from coordinator.service import Coordinator


# One slow answer says little; the page shows the median of this many.
PER_MODEL = 15
# The models that were asked last; a home serves a few.
MOST_MODELS = 32
# Watchers at a time; each is a connection and a queue, and a home has few screens.
MOST_WATCHERS = 16
# Events that wait for a watcher; if it does not read, it misses requests, but states catch it up.
QUEUED = 32
STATE_S = 1.0
HISTORY_S = 60
LOAD_S = 5.0
# Entries of the history, so that it stays bounded at thousands of requests per second.
MOST_KEPT = 20_000


class Recent:
    """The latest answers, by model, oldest first."""

    def __init__(self) -> None:
        self._answers: dict[str, deque[dict[str, Any]]] = {}

    def add(self, model: str, ended: RequestRecord) -> None:
        """Keeps an answer; `model` is its public name."""
        if ended.error is not None:
            return
        answers = self._answers.pop(model, None) or deque(maxlen=PER_MODEL)
        self._answers[model] = answers  # the last to be dropped
        if len(self._answers) > MOST_MODELS:
            del self._answers[next(iter(self._answers))]
        answers.append({"plan_version": ended.plan_version, "taken_ms": taken_ms(ended)})

    def told(self) -> dict[str, list[dict[str, Any]]]:
        """The `recent` event."""
        return {model: [*answers] for model, answers in self._answers.items()}


def taken_ms(ended: RequestRecord) -> float:
    """Milliseconds from a request's turn to its answer: what one device alone is compared with,
    which waits for nobody either.
    """
    waited_s = ended.answer.timing.queue_s if ended.answer else 0.0
    return round((ended.ended_s - ended.arrived_s - waited_s) * 1000, 2)


class Hub:
    """Turns the journal's entries into events for every open page."""

    def __init__(self, coordinator: "Coordinator") -> None:
        self._coordinator = coordinator
        self._watchers: set[asyncio.Queue[str | None]] = set()
        # (when it ended, seconds it took, whether it was answered), and (when, device, seconds).
        self._ends: deque[tuple[float, float, bool]] = deque(maxlen=MOST_KEPT)
        self._busy: deque[tuple[float, str, float]] = deque(maxlen=MOST_KEPT)
        self._last: dict[str, Any] | None = None
        self._recent = Recent()
        self._closed = False
        # The devices' last known names, by id, also of those that are gone.
        self._called: dict[str, str] = {}
        self.day = Day(coordinator.settings.state_dir / FILE)
        coordinator.journal.listen(self._heard)

    def close(self) -> None:
        """Ends every watch, so that the server can stop; writes the minute that is running."""
        self._closed = True
        for queue in self._watchers:
            while queue.full():
                queue.get_nowait()
            queue.put_nowait(None)
        self.day.close()

    def require_room(self) -> None:
        """Raises:
        Unavailable: too many pages are open.
        """
        if len(self._watchers) >= MOST_WATCHERS:
            raise Unavailable(
                cause=f"{MOST_WATCHERS} pages are already watching", cure="Close one of them"
            )

    async def watch(self) -> AsyncIterator[str]:
        """Events for one page, until it is closed or the server stops."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(QUEUED)
        self._watchers.add(queue)
        try:
            yield _event("state", self.state())  # first, since it gives devices their colours
            if self._last is not None:
                yield _event("request", self._last)
            yield _event("recent", self._recent.told())  # the last one is among them
            while not self._closed:
                yield _event("state", self.state())
                deadline = asyncio.get_running_loop().time() + STATE_S
                try:
                    async with asyncio.timeout_at(deadline):
                        while True:
                            told = await queue.get()
                            if told is None:
                                return
                            yield told
                except TimeoutError:
                    continue
        finally:
            self._watchers.discard(queue)

    def state(self) -> dict[str, Any]:
        """The `state` event."""
        now = time.monotonic()
        ready, reason = self._coordinator.served.readiness()
        frigate = self._coordinator.doctor.frigate
        # Each device's share of the last seconds in which it computed.
        load: dict[str, float] = {}
        for stopped_s, device, seconds in reversed(self._busy):
            if stopped_s < now - LOAD_S:
                break
            load[device] = load.get(device, 0.0) + seconds / LOAD_S
        return {
            "ready": ready,
            "reason": reason,
            "queue": self._coordinator.admission.waiting,
            "in_flight": self._coordinator.admission.running,
            "devices": [
                self._device(status, load)
                for status in self._coordinator.device_statuses()
                if not status.is_alias
            ],
            "models": [
                {
                    "name": self._coordinator.names.public(status.name)[0],
                    "task": status.task,
                    "ready": status.ready,
                    "state": status.state,
                    "plan_version": status.plan_version,
                    "arrivals_per_s": round(status.load.arrivals_per_s, 2),
                    "capacity_per_s": round(status.load.capacity_per_s, 2),
                    "alone": self._alone(status.name),
                    "assumed": dict(status.assumed),
                }
                for status in self._coordinator.served.statuses()
            ],
            "requests": self._requests(now),
            "frigate": {"seen": frigate.seen, "in_time": frigate.holds, "cure": frigate.cure}
            if frigate
            else None,
        }

    def _alone(self, model: str) -> dict[str, Any] | None:
        """What one device took when it was last measured."""
        found = self._coordinator.measuring.baselines.get(model)
        return {"device": found.device, "ms": _ms(found.latency_s)} if found else None

    # ------------------------------------------------------------ from the journal

    def _heard(self, entry: RequestRecord | TookOver) -> None:
        if isinstance(entry, TookOver):
            return
        self.day.add(entry.ended_at, entry.ended_s - entry.arrived_s, answered=entry.error is None)
        self._ends.append((entry.ended_s, entry.ended_s - entry.arrived_s, entry.error is None))
        for task in entry.tasks:
            self._busy.append((task.stop_s, task.device, task.stop_s - task.start_s))
        name = self._coordinator.names.public(entry.model)[0]
        self._last = _request(entry, name)
        self._recent.add(name, entry)
        if self._watchers:
            event = _event("request", self._last)
            for queue in self._watchers:
                if not queue.full():
                    queue.put_nowait(event)

    def _device(self, status: DeviceStatus, load: dict[str, float]) -> dict[str, Any]:
        """One device; a lost one keeps its last name."""
        if status.state == "ready" and len(self._called) < MOST_KEPT:
            self._called[status.id] = status.name
        return {**_facts(status, load), "name": self._called.get(status.id, status.name)}

    def _requests(self, now: float) -> dict[str, Any]:
        """Answers and errors of the last minute, per second, oldest first, with their latencies."""
        answered, failed = [0] * HISTORY_S, [0] * HISTORY_S
        taken: list[float] = []
        for ended_s, seconds, good in reversed(self._ends):
            age = int(now - ended_s)
            if age >= HISTORY_S:
                break
            (answered if good else failed)[HISTORY_S - 1 - max(0, age)] += 1
            if good:
                taken.append(seconds)
        taken.sort()
        return {
            "answered": answered,
            "failed": failed,
            "median_ms": _ms(taken[len(taken) // 2]) if taken else None,
            "p99_ms": _ms(taken[math.ceil(len(taken) * 0.99) - 1]) if taken else None,
        }


def _request(ended: RequestRecord, model: str) -> dict[str, Any]:
    """The `request` event; its bars are in milliseconds since the request's arrival."""
    start_s = ended.arrived_s
    told: dict[str, Any] = {
        "id": ended.request_id,
        "model": model,
        "outcome": ended.outcome,
        "total_ms": _ms(ended.ended_s - start_s),
        "tasks": [],
    }
    if ended.error is not None:
        return {**told, "cause": ended.error.cause}
    assert ended.answer is not None
    told |= {"plan_version": ended.plan_version, "queue_ms": _ms(ended.answer.timing.queue_s)}
    told["taken_ms"] = taken_ms(ended)
    for task in ended.tasks:
        marks = {
            "sent": task.sent_s,
            "ready": task.ready_s,
            "start": task.start_s,
            "stop": task.stop_s,
            "received": task.received_s,
        }
        since = {name: _ms(mark - start_s) if mark else None for name, mark in marks.items()}
        told["tasks"].append({"device": task.device, **since})
    return told


def _facts(status: DeviceStatus, load: dict[str, float]) -> dict[str, Any]:
    limits = status.facts.get("limits")
    return {
        "id": status.id or status.address,
        "state": status.state,
        "reason": status.reason,
        "cpu": status.cpu,
        "cores": status.cores,
        "host": status.host,
        "gflops": round(status.gflops, 2),
        "mbps": round(status.mbps, 1) if math.isfinite(status.mbps) else None,
        "celsius": status.celsius or None,
        "throttled": status.throttled,
        "engine": status.facts.get("engine", ""),
        "speedup": status.facts.get("speedup", 0.0),
        "engines": status.facts.get("engines", ()),
        "limits": str(Limits(**limits)) if isinstance(limits, Mapping) else "",
        "load": round(min(1.0, load.get(status.id, 0.0)), 3),
    }


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
