"""What `test_any_device` steps, and the faults that it has to notice."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from coordinator.devices.withheld import Quarantine, Withheld
from coordinator.measuring import queues
from coordinator.measuring.queues import PROBES_AT_MOST, LinkNews, LinkQueue, ProfileQueue
from protos.wire.facts import DeviceId


class WithheldDriver(Withheld):
    def __init__(self) -> None:
        super().__init__({})

    def drain(self, device: DeviceId, name: str, now: float) -> bool:
        """Whether it was in use until now."""
        return super().drain(device, name)

    def emptied(self, device: DeviceId, now: float) -> bool:
        """Whether it is withdrawn."""
        return super().emptied(device)

    def resume(self, device: DeviceId, now: float) -> None:
        super().resume(device)


class LinksDriver(LinkQueue):
    def probed(self, device: DeviceId, rate: float, *, disturbed: bool) -> LinkNews:
        return super().probed(rate, disturbed=disturbed)


class KindsDriver(ProfileQueue):
    def profiled(self, device: DeviceId, *, found: bool) -> DeviceId | None:
        return super().profiled(found=found)


# ---------------------------------------------------------------- faults


def never_withdraws(withheld: Withheld, now: float) -> tuple[list[DeviceId], list[DeviceId]]:
    """Draining has no end while something runs on the device."""
    back = [each for each, until_s in withheld._back_s.items() if until_s <= now]
    for device in back:
        del withheld._back_s[device]
    return [], back


def convicts_at_once(
    withheld: Withheld, device: DeviceId, cause: str, now: float, *, proven: bool
) -> float:
    """The first wrong result is taken as a proof."""
    withheld._quarantine.convict(device, cause)
    withheld._back_s[device] = inf
    return inf


def skips_links(queue: LinkQueue, cause: str, devices: Iterable[DeviceId]) -> LinkNews:
    """Only one link of each cause is probed."""
    return WANTED(queue, cause, list(devices)[:1])


def profiles_beside(queue: ProfileQueue, device: DeviceId, kind: str) -> DeviceId:
    """Whoever wants to is profiled at once."""
    queue._current = device, kind
    return device


def forgets_others(queue: ProfileQueue, *, found: bool) -> DeviceId | None:
    """Once a device was profiled, nobody else is."""
    following = PROFILED(queue, found=found)
    queue._wanted.clear()
    return following


WANTED, PROFILED = LinkQueue.want, ProfileQueue.profiled
FAULTS: list[tuple[object, str, object]] = [
    (Withheld, "tick", never_withdraws),
    (Withheld, "wrong", convicts_at_once),
    (Quarantine, "pardon", lambda *_: None),
    (Quarantine, "accuse", lambda *_: 0.0),
    (LinkQueue, "want", skips_links),
    (queues, "PROBES_AT_MOST", PROBES_AT_MOST + 1),
    (queues, "AGREE", 3.0),
    (ProfileQueue, "want", profiles_beside),
    (ProfileQueue, "profiled", forgets_others),
]
