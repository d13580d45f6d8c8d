"""A request's timeline as Chrome trace events: a row per device, and per link and direction.

Times are on the host's monotonic clock. Those of devices are converted with the offsets that pings
measured, with an error of at most half a round trip. A transfer's bar begins when its sender had
finished computing and ends when its reader had all inputs: an upper bound if it had several.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (the format)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.tasks.timeline import Sketch, TaskTimes

_REQUEST, _DEVICES, _LINKS = 1, 2, 3
_TITLES = {_REQUEST: "request", _DEVICES: "devices", _LINKS: "links"}
HOST = "host"


@dataclass(frozen=True, slots=True)
class Lived:
    """The data of a trace. `names` are the devices' names by id."""

    request_id: str
    model: str
    arrived_s: float
    started_s: float
    ended_s: float
    tasks: Sequence[TaskTimes]
    sketch: Sketch
    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Bar:
    process: int
    row: str
    name: str
    start_s: float
    stop_s: float
    details: Mapping[str, Any]


def chrome_trace(lived: Lived) -> dict[str, Any]:
    """One JSON object for Perfetto or chrome://tracing. Time 0 is the request's arrival."""
    bars = [*_request_bars(lived), *_task_bars(lived), *_peer_bars(lived)]
    # A thread number for each row and lane; the rows of a process are ordered by name.
    used = sorted({(bar.process, bar.row, lane) for bar, lane in _lanes(bars)})
    rows = {key: number for number, key in enumerate(used, start=1)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": number, "args": {"name": title}}
        for number, title in _TITLES.items()
    ]
    for (process, row, lane), thread in rows.items():
        title = row if not lane else f"{row} ({lane + 1})"
        names = {"pid": process, "tid": thread}
        events.append({"ph": "M", "name": "thread_name", **names, "args": {"name": title}})
    for bar, lane in _lanes(bars):
        thread = rows[bar.process, bar.row, lane]
        events.append(
            {
                "ph": "X",
                "name": bar.name,
                "cat": _TITLES[bar.process],
                "pid": bar.process,
                "tid": thread,
                "ts": round((bar.start_s - lived.arrived_s) * 1e6, 1),
                "dur": round((bar.stop_s - bar.start_s) * 1e6, 1),
                "args": dict(bar.details),
            }
        )
    about = {"request": lived.request_id, "model": lived.model}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _request_bars(lived: Lived) -> Iterator[_Bar]:
    row = lived.request_id
    if lived.started_s > lived.arrived_s:
        yield _Bar(_REQUEST, row, "queue", lived.arrived_s, lived.started_s, {})
    yield _Bar(_REQUEST, row, lived.model, lived.started_s, lived.ended_s, {})


def _task_bars(lived: Lived) -> Iterator[_Bar]:
    """What each device computed, and the transfers between it and the host for that."""
    for timed in lived.tasks:
        device = lived.names.get(timed.device, timed.device)
        block = lived.sketch.blocks[timed.task]
        about = {"task": timed.task, "block": block, "attempt": timed.attempt}
        waited_ms = round((timed.start_s - timed.ready_s) * 1e3, 3)
        details = {"device": device, **about, "waited_ms": waited_ms}
        yield _Bar(_DEVICES, device, f"block {block}", timed.start_s, timed.stop_s, details)
        if timed.sent_bytes:
            details = {**about, "bytes": timed.sent_bytes}
            yield _link_bar(
                HOST, device, f"scatter {block}", (timed.sent_s, timed.ready_s), details
            )
        if timed.received_bytes:
            times = (timed.stop_s, timed.received_s)
            details = {**about, "bytes": timed.received_bytes}
            yield _link_bar(device, HOST, f"gather {block}", times, details)


def _peer_bars(lived: Lived) -> Iterator[_Bar]:
    """Transfers between devices. A task that ran again got its input from the host, which
    `_task_bars` shows.
    """
    first = {task.task: task for task in lived.tasks if not task.attempt}
    for passed in lived.sketch.passed:
        source, reader = first.get(passed.source), first.get(passed.reader)
        if source is None or reader is None or source.device == reader.device or reader.relayed:
            continue
        names = [lived.names.get(end.device, end.device) for end in (source, reader)]
        block = lived.sketch.blocks[passed.reader]
        details = {"from_task": passed.source, "to_task": passed.reader, "bytes": passed.bytes}
        times = (source.stop_s, reader.ready_s)
        yield _link_bar(names[0], names[1], f"halo {block}", times, details)


def _link_bar(
    source: str, target: str, name: str, times: tuple[float, float], details: Mapping[str, Any]
) -> _Bar:
    start, stop = times
    # Clock errors larger than the transfer must not make it end before it begins.
    return _Bar(_LINKS, f"{source} to {target}", name, start, max(start, stop), details)


def _lanes(bars: Sequence[_Bar]) -> Iterator[tuple[_Bar, int]]:
    """Bars of one row that overlap get different lanes, because viewers would hide one."""
    busy: dict[tuple[int, str], list[float]] = {}
    for bar in sorted(bars, key=lambda bar: bar.start_s):
        ends = busy.setdefault((bar.process, bar.row), [])
        lane = next((k for k, end in enumerate(ends) if end <= bar.start_s), len(ends))
        if lane == len(ends):
            ends.append(bar.stop_s)
        else:
            ends[lane] = bar.stop_s
        yield bar, lane
