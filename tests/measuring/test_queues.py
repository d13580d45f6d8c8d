"""Which link and which device is measured when: what happens, and exactly what is to be done."""

import pytest

from coordinator.measuring.queues import AGREE, PROBES_AT_MOST, LinkNews, LinkQueue, ProfileQueue
from protos.wire.facts import DeviceId

A, B, C = map(DeviceId, "abc")


def probed(queue: LinkQueue, *rates: float) -> list[LinkNews]:
    return [queue.probed(rate) for rate in rates]


def test_links_are_probed_one_after_the_other_whoever_wanted_them() -> None:
    queue = LinkQueue()
    assert queue.want("a joined", [A]) == ([], A)
    assert queue.want("all again", [A, B]) == ([], None)
    assert queue.unprobed == {A, B}
    assert probed(queue, 40.0) == [([], A)]
    assert probed(queue, 41.0) == [(["a joined"], A)]
    assert probed(queue, 40.0, 40.0) == [([], A), ([], B)]
    assert queue.probed(7.0) == ([], B)
    assert queue.probed(7.0) == (["all again"], None)
    assert queue.unprobed == set()
    assert queue.want("nobody is there", []) == (["nobody is there"], None)


@pytest.mark.parametrize(
    ("rates", "probes"),
    [
        ((40.0, 40.0 * AGREE), 2),
        ((40.0, 41.0 * AGREE, 41.0), 3),
        (tuple(2.0**n for n in range(PROBES_AT_MOST)), PROBES_AT_MOST),
        ((40.0, 0.0), 2),
    ],
)
def test_a_link_is_measured_when_two_probes_agree_or_it_is_hopeless(
    rates: tuple[float, ...], probes: int
) -> None:
    queue = LinkQueue()
    queue.want("measured", [A])
    assert probed(queue, *rates) == [([], A)] * (probes - 1) + [(["measured"], None)]


def test_a_probe_that_was_disturbed_says_nothing() -> None:
    queue = LinkQueue()
    queue.want("measured", [A])
    probed(queue, 40.0)
    assert queue.probed(40.0, disturbed=True) == ([], A)
    assert probed(queue, 40.0, 40.0) == [([], A), (["measured"], None)]


def test_devices_are_profiled_one_at_a_time_and_alike_ones_once() -> None:
    queue = ProfileQueue()
    assert queue.want(A, "pi 4") == A
    assert queue.want(B, "pi 4") is None
    assert queue.want(C, "pi 5") is None
    assert queue.wants(A)
    assert queue.wants(B)
    assert queue.profiled(found=True) == C
    assert not queue.wants(B)
    assert queue.profiled(found=True) is None
    assert not queue.wants(C)


def test_device_that_cannot_be_profiled_is_stood_in_for() -> None:
    queue = ProfileQueue()
    queue.want(A, "pi 4")
    queue.want(B, "pi 4")
    assert queue.profiled(found=False) == B
    # It comes back while the other is measured: it would be next, if that fails, too.
    assert queue.want(A, "pi 4") is None
    assert queue.profiled(found=False) == A
    assert queue.want(A, "pi 4") is None
    assert queue.profiled(found=False) == A
    assert queue.profiled(found=True) is None
