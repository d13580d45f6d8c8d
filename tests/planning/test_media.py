"""Wires, event loops and processors, message by message."""

from dataclasses import replace

import pytest

from coordinator.costs.cluster import Cluster, EndpointOverhead, Link
from coordinator.planning.simulate.media import Machines, Media
from tests.planning.support import cluster

WIRE = Link(bytes_per_s=1000.0, message_s=0.25, latency_s=0.125)
SIZE = 100
WIRE_S = 0.25 + 0.1
NEAR = EndpointOverhead(message_s=0.5, byte_s=0.01, task_s=2.0)
FAR = EndpointOverhead(message_s=4.0, byte_s=0.02, task_s=8.0)
NEAR_S, FAR_S = 0.5 + 1.0, 4.0 + 2.0


def two(medium: str = "switch", link: Link = WIRE, *, host: bool = False) -> Cluster:
    some = cluster(1.0, 1.0, link=link, host=host)
    return replace(some, medium=medium, uplink=WIRE if medium == "star" else None)


class Moments:
    """Sends messages, and tells when they happened."""

    def __init__(self, some: Cluster) -> None:
        self.media, self.seen = Media(Machines(some)), {}
        self.awaited: list[int] = []

    def note(self, what: str) -> None:
        self.seen[what] = self.media.now
        self.awaited.pop()

    def all(self, count: int) -> dict[str, float]:
        self.awaited.extend(range(count - len(self.seen)))
        self.media.run(self.awaited)
        return self.seen


def test_the_host_handles_one_message_after_the_other() -> None:
    moments = Moments(two(link=replace(WIRE, near=NEAR)))
    moments.media.down(0, SIZE, moments.note, "a")
    moments.media.down(1, SIZE, moments.note, "b")
    rest = WIRE_S + 0.125
    assert moments.all(2) == pytest.approx({"a": NEAR_S + rest, "b": 2 * NEAR_S + rest})


def test_answers_wait_for_the_host_that_is_sending() -> None:
    moments = Moments(two(link=replace(WIRE, near=NEAR)))
    moments.media.up(0, SIZE, moments.note, "up")
    for name in "abc":
        moments.media.down(1, 0, moments.note, name)
    # The answer is at the host at 0.475, which is busy with three empty messages until 1.5.
    assert moments.all(4)["up"] == pytest.approx(1.5 + NEAR_S)


def test_tasks_are_described_before_what_follows_is_sent() -> None:
    moments = Moments(two(link=replace(WIRE, near=NEAR)))
    moments.media.describe_tasks(0, 3)
    moments.media.down(0, SIZE, moments.note, "a")
    assert moments.all(1)["a"] == pytest.approx(6.0 + NEAR_S + WIRE_S + 0.125)


def test_a_device_computes_while_its_event_loop_handles_messages() -> None:
    moments = Moments(two(link=replace(WIRE, far=FAR)))
    moments.media.compute(0, 100.0, 0.0, moments.note, "task")
    moments.media.across(0, 1, SIZE, moments.note, "halo")
    seen = moments.all(2)
    # Handed over first, the task takes the loop for 8 s and then only the processor.
    assert seen["task"] == pytest.approx(8.0 + 100.0)
    assert seen["halo"] == pytest.approx(8.0 + FAR_S + WIRE_S + 0.125 + FAR_S)


def test_tasks_are_set_up_one_after_the_other_before_their_inputs_are_there() -> None:
    far = replace(FAR, set_up_s=3.0)
    moments = Moments(two(link=replace(WIRE, far=far)))
    first, second = (moments.media.set_up(0) for _ in range(2))
    assert (first, second) == (3.0, 6.0)
    # Its input was there first: it is set up, then started.
    moments.media.compute(0, 100.0, second, moments.note, "at its turn")
    assert moments.all(1) == pytest.approx({"at its turn": 6.0 + 8.0 + 100.0})
    # Set up long ago.
    moments.media.compute(0, 100.0, first, moments.note, "early")
    assert moments.all(2)["early"] == pytest.approx(114.0 + 8.0 + 100.0)


def test_a_device_computes_so_many_tasks_at_once() -> None:
    some = two()
    twice = replace(some, devices=(replace(some.devices[0], concurrency=2), some.devices[1]))
    moments = Moments(twice)
    for name, seconds in {"a": 3.0, "b": 1.0, "c": 1.0, "d": 1.5}.items():
        moments.media.compute(0, seconds, 0.0, moments.note, name)
    assert moments.all(4) == pytest.approx({"a": 3.0, "b": 1.0, "c": 2.0, "d": 3.5})


def test_peers_pass_the_star_once_each_way_and_the_air_twice() -> None:
    switch, star, air = (Moments(two(medium)) for medium in ("switch", "star", "air"))
    for moments in (switch, star, air):
        moments.media.across(0, 1, SIZE, moments.note, "ab")
        moments.media.across(1, 0, SIZE, moments.note, "ba")
    assert switch.all(2) == pytest.approx({"ab": WIRE_S + 0.125, "ba": WIRE_S + 0.125})
    assert star.all(2) == pytest.approx({"ab": WIRE_S + 0.125, "ba": 2 * WIRE_S + 0.125})
    assert air.all(2) == pytest.approx({"ab": 2 * WIRE_S + 0.125, "ba": 4 * WIRE_S + 0.125})


def test_the_hosts_own_worker_uses_the_hosts_port() -> None:
    star, air = (Moments(two(medium, host=True)) for medium in ("star", "air"))
    for moments in (star, air):
        moments.media.across(0, 1, SIZE, moments.note, "out")
        moments.media.across(1, 0, SIZE, moments.note, "in")
    assert star.all(2) == pytest.approx({"out": WIRE_S + 0.125, "in": WIRE_S + 0.125})
    assert air.all(2) == pytest.approx({"out": WIRE_S + 0.125, "in": 2 * WIRE_S + 0.125})
