"""What `test_any_device` steps, and the faults that it has to notice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from coordinator.control import measurements
from coordinator.control.actions import (
    Action,
    Empty,
    LeaveOut,
    ProbeLink,
    ProfileDevice,
    Replan,
    Withdraw,
)
from coordinator.control.events import (
    Drained,
    Emptied,
    Event,
    LinksWanted,
    Probed,
    Profiled,
    ProfileWanted,
    Replanned,
    Resumed,
    Tick,
    Wrong,
)
from coordinator.control.measurements import PROBES_AT_MOST, Kinds, Links
from coordinator.control.quarantine import Quarantine
from coordinator.control.withheld import Withheld
from protos.wire.facts import DeviceId


class WithheldDriver(Withheld):
    def __init__(self) -> None:
        super().__init__({})

    def drain(self, device: DeviceId, name: str, now: float) -> bool:
        """Whether it was in use until now."""
        found = self.step(Drained(device, name), now)
        assert found in ([], [Replan(f"{device} is drained"), Empty(device)])
        return bool(found)

    def replanned(self, device: DeviceId, now: float) -> None:
        assert self.step(Replanned(device), now) == []

    def emptied(self, device: DeviceId, now: float) -> bool:
        """Whether it is withdrawn."""
        found = self.step(Emptied(device), now)
        assert found in ([], [Withdraw(device)])
        return bool(found)

    def resume(self, device: DeviceId, now: float) -> None:
        assert self.step(Resumed(device), now) == [Replan(f"{device} is resumed")]

    def wrong(self, device: DeviceId, cause: str, now: float, *, proven: bool) -> float:
        """For how many seconds it is left out."""
        found = self.step(Wrong(device, cause, proven), now)
        if not found:
            return 0.0
        left_out, replan = found
        assert isinstance(left_out, LeaveOut)
        assert (left_out.device, replan) == (device, Replan(f"{device} is quarantined"))
        return left_out.seconds

    def tick(self, now: float) -> tuple[list[DeviceId], list[DeviceId]]:
        """Who is withdrawn, and who is tried again."""
        found = self.step(Tick(), now)
        withdrawn = [each.device for each in found if isinstance(each, Withdraw)]
        causes = [each.cause.split()[0] for each in found if isinstance(each, Replan)]
        return withdrawn, list(map(DeviceId, causes))


class LinksDriver(Links):
    def want(self, cause: str, devices: Sequence[DeviceId]) -> tuple[list[str], DeviceId | None]:
        return news(self.step(LinksWanted(cause, tuple(devices)), 0.0))

    def probed(
        self, device: DeviceId, rate: float, *, disturbed: bool
    ) -> tuple[list[str], DeviceId | None]:
        return news(self.step(Probed(device, rate, disturbed), 0.0))


def news(actions: list[Action]) -> tuple[list[str], DeviceId | None]:
    """The causes whose links are all measured, and the device whose link is probed next."""
    causes = [each.cause for each in actions if isinstance(each, Replan)]
    probes = [each.device for each in actions if isinstance(each, ProbeLink)]
    assert len(probes) <= 1
    return causes, probes[0] if probes else None


class KindsDriver(Kinds):
    def want(self, device: DeviceId, kind: str) -> DeviceId | None:
        return following(self.step(ProfileWanted(device, kind), 0.0))

    def profiled(self, device: DeviceId, *, found: bool) -> DeviceId | None:
        return following(self.step(Profiled(device, found), 0.0))


def following(actions: list[Action]) -> DeviceId | None:
    """The device that is profiled now."""
    devices = [each.device for each in actions if isinstance(each, ProfileDevice)]
    assert len(devices) <= 1
    return devices[0] if devices else None


# ---------------------------------------------------------------- faults


def never_withdraws(withheld: Withheld, now: float) -> Iterator[Action]:
    """Draining has no end while something runs on the device."""
    for device in [each for each, until_s in withheld._back_s.items() if until_s <= now]:
        del withheld._back_s[device]
        yield Replan(f"{device} is tried again")


def convicts_at_once(
    withheld: Withheld, device: DeviceId, cause: str, now: float, *, proven: bool
) -> Iterator[Action]:
    """The first wrong result is taken as a proof."""
    withheld._quarantine.convict(device, cause)
    withheld._back_s[device] = inf
    yield LeaveOut(device, cause, inf)
    yield Replan(f"{device} is quarantined")


def probes_all(links: Links) -> Iterator[Action]:
    """All links of a cause are probed at the same time."""
    while links._wanted and not links._wanted[0][1]:
        yield Replan(links._wanted.popleft()[0])
    if links._wanted:
        yield from map(ProbeLink, links._wanted[0][1])


def profiles_beside(kinds: Kinds, event: Event, now: float) -> Iterator[Action]:
    """Whoever wants to is profiled at once."""
    if isinstance(event, ProfileWanted):
        kinds._current = event.device, event.kind
        yield ProfileDevice(event.device)
    else:
        kinds._current = None


def forgets_others(kinds: Kinds, event: Event, now: float) -> Iterator[Action]:
    """Once a profile is found, nobody else is profiled."""
    yield from GIVEN(kinds, event, now)
    if isinstance(event, Profiled):
        kinds._wanted.clear()


GIVEN = Kinds._react
FAULTS: list[tuple[object, str, object]] = [
    (Withheld, "_tick", never_withdraws),
    (Withheld, "_wrong", convicts_at_once),
    (Quarantine, "pardon", lambda *_: None),
    (Quarantine, "accuse", lambda *_: 0.0),
    (Links, "_go_on", probes_all),
    (measurements, "PROBES_AT_MOST", PROBES_AT_MOST + 1),
    (measurements, "AGREE", 3.0),
    (Kinds, "_react", profiles_beside),
    (Kinds, "_react", forgets_others),
]
