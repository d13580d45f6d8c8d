"""What a request's transfers tell of links: bytes and seconds of each between host and device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coordinator.execution.timeline import TaskTimes
from coordinator.planning.plan import DeviceId


@dataclass(frozen=True, slots=True)
class Seen:
    """A transfer on the host's clock, in one direction."""

    device: DeviceId
    size_bytes: int
    start_s: float
    stop_s: float

    @property
    def seconds(self) -> float:
        """From sending to arrival."""
        return self.stop_s - self.start_s


def transfers(times: Sequence[TaskTimes], *, shared: bool) -> Iterator[Seen]:
    """Of all tasks, to the devices and back. Where devices have a `shared` medium, only those that
    no other one of the same direction overlapped: the others took as long as they waited for each
    other, which says nothing of the link.
    """
    down = [
        Seen(DeviceId(each.device), each.sent_bytes, each.sent_s, each.ready_s)
        for each in times
        if each.sent_bytes
    ]
    up = [
        Seen(DeviceId(each.device), each.received_bytes, each.stop_s, each.received_s)
        for each in times
        if each.received_bytes
    ]
    for way in (down, up):
        yield from _alone(way) if shared else way


def _alone(way: Sequence[Seen]) -> Iterator[Seen]:
    ordered = sorted(way, key=lambda each: each.start_s)
    until_s = float("-inf")
    for index, each in enumerate(ordered):
        following = ordered[index + 1].start_s if index + 1 < len(ordered) else float("inf")
        if until_s <= each.start_s and each.stop_s <= following:
            yield each
        until_s = max(until_s, each.stop_s)
