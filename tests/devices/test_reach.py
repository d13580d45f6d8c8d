"""Devices are asked which others they reach: each pair once, not everybody at every change."""

import pytest

from coordinator.devices import peer_reachability as reach
from coordinator.devices.peer_reachability import Reach
from protos.errors import LostWorker


class Device:
    """A device that cannot reach some addresses."""

    def __init__(self, address, blocked=()):
        self.address, self.blocked, self.asked = address, set(blocked), []

    async def unreachable(self, devices):
        self.asked.append(set(devices))
        return frozenset(each for each, at in devices.items() if at in self.blocked)


class Gone(Device):
    async def unreachable(self, devices):
        raise LostWorker(cause="it has gone", cure="Wait")


async def test_devices_that_join_one_by_one_ask_about_each_pair_once():
    asking, devices = Reach(), {}
    for number in range(12):
        devices[f"d{number}"] = Device(f"at-{number}")
        assert asking.is_due(devices)
        assert not await asking.ask(devices)
        assert not asking.is_due(devices)
    asked = [(k, other) for k, each in devices.items() for some in each.asked for other in some]
    assert sorted(asked) == sorted((a, b) for a in devices for b in devices if a != b)


async def test_pair_that_is_apart_is_known_until_either_moves_or_leaves():
    a, b, c = Device("a", {"b"}), Device("b"), Device("c", {"a"})
    asking, devices = Reach(), {"a": a, "b": b}
    assert await asking.ask(devices)
    assert asking.apart == {frozenset("ab")}
    devices["c"] = c
    assert await asking.ask(devices)
    assert asking.apart == {frozenset("ab"), frozenset("ac")}
    b.address = "elsewhere"
    assert await asking.ask(devices)
    assert asking.apart == {frozenset("ac")}
    del devices["a"]
    assert await asking.ask(devices)
    assert asking.apart == frozenset()
    assert not asking.is_due(devices)


async def test_devices_are_asked_again_after_a_while(monkeypatch):
    a, b = Device("a"), Device("b")
    asking, devices = Reach(), {"a": a, "b": b}
    await asking.ask(devices)
    b.blocked = {"a"}
    assert not asking.is_due(devices)
    monkeypatch.setattr(reach, "ASK_AGAIN_S", -1.0)
    assert asking.is_due(devices)
    assert await asking.ask(devices)
    assert asking.apart == {frozenset("ab")}


async def test_pair_that_is_apart_is_asked_again_soon_then_ever_more_rarely(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(reach.time, "monotonic", lambda: now)
    a, b, c = Device("a", {"b"}), Device("b"), Device("c")
    asking, devices = Reach(), {"a": a, "b": b, "c": c}
    await asking.ask(devices)
    waits = []
    for _ in range(4):
        before = now
        while not asking.is_due(devices):
            now += 0.5
        waits.append(now - before)
        assert not await asking.ask(devices)
    assert waits == [2.5, 4.5, 8.5, 16.5]
    assert a.asked[1:] == [{"b"}] * 4
    assert b.asked[1:] == [{"a"}] * 4
    assert c.asked == [{"a", "b"}]
    a.blocked = set()
    now += 40
    assert await asking.ask(devices)
    assert asking.apart == frozenset()
    now += 40
    assert not asking.is_due(devices)


@pytest.mark.parametrize("lost", ["a", "b"])
async def test_a_device_that_is_lost_meanwhile_keeps_nobody_waiting(lost):
    devices = {"a": Device("a"), "b": Device("b")}
    devices[lost] = Gone(lost)
    assert not await Reach().ask(devices)
