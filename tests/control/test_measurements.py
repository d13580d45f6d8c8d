"""Which link and which device is measured when: what happens, and exactly what is to be done."""

import pytest

from coordinator.control.actions import Action, ProbeLink, ProfileDevice, Replan
from coordinator.control.events import LinksWanted, Probed, Profiled, ProfileWanted
from coordinator.control.measurements import AGREE, PROBES_AT_MOST, Kinds, Links
from protos.wire.facts import DeviceId

A, B, C = map(DeviceId, "abc")


def probed(state: Links, *rates: float) -> list[list[Action]]:
    return [state.step(Probed(A, rate), 0.0) for rate in rates]


def test_links_are_probed_one_after_the_other_whoever_wanted_them() -> None:
    state = Links()
    assert state.step(LinksWanted("a joined", (A,)), 0.0) == [ProbeLink(A)]
    assert state.step(LinksWanted("all again", (A, B)), 0.0) == []
    assert state.unprobed == {A, B}
    assert probed(state, 40.0) == [[ProbeLink(A)]]
    assert probed(state, 41.0) == [[Replan("a joined"), ProbeLink(A)]]
    assert probed(state, 40.0, 40.0) == [[ProbeLink(A)], [ProbeLink(B)]]
    assert state.step(Probed(B, 7.0), 0.0) == [ProbeLink(B)]
    assert state.step(Probed(B, 7.0), 0.0) == [Replan("all again")]
    assert state.unprobed == set()
    assert state.step(LinksWanted("nobody is there", ()), 0.0) == [Replan("nobody is there")]


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
    state = Links()
    state.step(LinksWanted("measured", (A,)), 0.0)
    found = probed(state, *rates)
    assert found == [[ProbeLink(A)]] * (probes - 1) + [[Replan("measured")]]


def test_a_probe_that_was_disturbed_says_nothing() -> None:
    state = Links()
    state.step(LinksWanted("measured", (A,)), 0.0)
    probed(state, 40.0)
    assert state.step(Probed(A, 40.0, disturbed=True), 0.0) == [ProbeLink(A)]
    assert probed(state, 40.0, 40.0) == [[ProbeLink(A)], [Replan("measured")]]


def test_devices_are_profiled_one_at_a_time_and_alike_ones_once() -> None:
    state = Kinds()
    assert state.step(ProfileWanted(A, "pi 4"), 0.0) == [ProfileDevice(A)]
    assert state.step(ProfileWanted(B, "pi 4"), 0.0) == []
    assert state.step(ProfileWanted(C, "pi 5"), 0.0) == []
    assert state.wants(A)
    assert state.wants(B)
    assert state.step(Profiled(A, found=True), 0.0) == [ProfileDevice(C)]
    assert not state.wants(B)
    assert state.step(Profiled(C, found=True), 0.0) == []
    assert not state.wants(C)


def test_one_that_cannot_be_profiled_is_stood_in_for() -> None:
    state = Kinds()
    state.step(ProfileWanted(A, "pi 4"), 0.0)
    state.step(ProfileWanted(B, "pi 4"), 0.0)
    assert state.step(Profiled(A, found=False), 0.0) == [ProfileDevice(B)]
    # It comes back while the other is measured: it would be next, if that fails, too.
    assert state.step(ProfileWanted(A, "pi 4"), 0.0) == []
    assert state.step(Profiled(B, found=False), 0.0) == [ProfileDevice(A)]
    assert state.step(ProfileWanted(A, "pi 4"), 0.0) == []
    assert state.step(Profiled(A, found=False), 0.0) == [ProfileDevice(A)]
    assert state.step(Profiled(A, found=True), 0.0) == []
