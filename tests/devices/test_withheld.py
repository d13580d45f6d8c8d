"""Devices that get no work: what happens to them, and for how long."""

from math import inf

import pytest

from coordinator.devices.withheld import FIRST_S, PATIENCE_S, STRIKES, Withheld
from coordinator.devices.withheld_list import MOST_QUARANTINED, WithheldList
from coordinator.trust.cluster_state import ClusterState
from protos.errors import BadConfiguration
from protos.wire.facts import DeviceId

A, B = DeviceId("a1"), DeviceId("b2")


def state_of(withheld: Withheld, device: DeviceId, now: float = 0.0) -> str:
    apart = withheld.of(device, now)
    return apart.state if apart else ""


def test_draining_device_is_drained_and_resumed() -> None:
    withheld = Withheld({})
    assert withheld.drain(A, "pi-1")
    assert not withheld.drain(A, "pi-1")
    assert state_of(withheld, A) == "draining"
    assert not withheld.of(A, 0.0).is_out
    withheld.replanned(A, 1.0)
    assert withheld.emptied(A)
    assert not withheld.emptied(A)
    assert state_of(withheld, A) == "drained"
    assert withheld.of(A, 0.0).is_out
    assert "imbrex resume pi-1" in withheld.of(A, 0.0).cure
    withheld.resume(A)
    assert state_of(withheld, A) == ""


def test_patience_begins_when_nothing_new_is_planned_for_it() -> None:
    withheld = Withheld({})
    withheld.drain(A, "pi-1")
    assert withheld.tick(1e9) == ([], [])
    withheld.replanned(A, 100.0)
    assert withheld.tick(99.0 + PATIENCE_S) == ([], [])
    assert withheld.tick(100.0 + PATIENCE_S) == ([A], [])
    assert state_of(withheld, A) == "drained"


def test_device_resumed_meanwhile_is_not_withdrawn() -> None:
    withheld = Withheld({})
    withheld.drain(A, "pi-1")
    withheld.resume(A)
    withheld.replanned(A, 2.0)
    assert not withheld.emptied(A)
    assert (withheld.tick(1e9), state_of(withheld, A)) == (([], []), "")


def test_device_with_too_many_wrong_results_gets_another_chance() -> None:
    withheld = Withheld({})
    seconds = [withheld.wrong(A, "it sent int8", 0.0) for _ in range(STRIKES)]
    assert seconds == [0] * (STRIKES - 1) + [FIRST_S]
    assert state_of(withheld, A) == "quarantined"
    assert withheld.wrong(A, "late", 1.0) == 0
    assert withheld.tick(FIRST_S - 0.1) == ([], [])
    assert withheld.tick(FIRST_S) == ([], [A])
    assert (state_of(withheld, A, FIRST_S), withheld.tick(1e9)) == ("", ([], []))


def test_a_person_can_end_a_quarantine() -> None:
    withheld = Withheld({})
    for _ in range(STRIKES):
        withheld.wrong(A, "it sent int8", 0.0)
    withheld.resume(A)
    assert (state_of(withheld, A, 1.0), withheld.tick(1e9)) == ("", ([], []))


def test_convicted_device_is_left_out_until_it_is_resumed() -> None:
    withheld = Withheld({})
    for _ in range(STRIKES):
        withheld.wrong(A, "it sent int8", 0.0)
    assert withheld.wrong(A, "task 3 is off", 1.0, proven=True) == inf
    assert withheld.wrong(A, "task 4 is off", 2.0, proven=True) == 0
    assert withheld.tick(1e9) == ([], [])
    assert state_of(withheld, A, 1e9) == "quarantined"
    withheld.resume(A)
    assert state_of(withheld, A, 1e9) == ""


def test_device_convicted_while_it_drains_finishes_nothing() -> None:
    withheld = Withheld({})
    withheld.drain(A, "pi-1")
    withheld.wrong(A, "task 3 is off", 1.0, proven=True)
    assert (state_of(withheld, A), withheld.of(A, 1.0).is_out) == ("quarantined", True)
    withheld.resume(A)
    assert state_of(withheld, A) == ""


def test_two_devices_of_one_name_are_told_apart_by_id() -> None:
    withheld = Withheld({A: "pi"})
    assert withheld.find("pi") == withheld.find(A) == A
    withheld.drain(B, "pi")
    assert withheld.find("pi") is None
    assert withheld.find(B) == B


def test_the_list_outlives_the_coordinator(tmp_path) -> None:
    before = WithheldList(ClusterState(tmp_path))
    before.drain(A, "pi-1")
    before.drain(B, "pi-2")
    before.resume(B)
    before.resume(B)
    after = Withheld(WithheldList(ClusterState(tmp_path)).drained())
    assert (state_of(after, A), state_of(after, B)) == ("drained", "")
    # Also while the device itself is away.
    assert after.find("pi-1") == A
    before.quarantine(B, "task 4 is off")
    before.quarantine(B, "another")
    assert WithheldList(ClusterState(tmp_path)).quarantined() == {B: "task 4 is off"}
    before.resume(B)
    assert before.quarantined() == {}


def test_made_up_devices_do_not_fill_the_list(tmp_path) -> None:
    listed = WithheldList(ClusterState(tmp_path))
    for number in range(MOST_QUARANTINED + 1):
        listed.quarantine(DeviceId(f"{number}"), "x" * 10_000)
    assert len(listed.quarantined()) == MOST_QUARANTINED
    assert max(map(len, listed.quarantined().values())) == 500


def test_a_list_without_names_is_good_enough(tmp_path) -> None:
    (tmp_path / "drained.json").write_text('{"a1": {}}')
    assert WithheldList(ClusterState(tmp_path)).drained() == {A: "a1"}


@pytest.mark.parametrize("damage", ["{", "[]", '{"a1": 3}'])
def test_a_damaged_list_is_named(tmp_path, damage) -> None:
    (tmp_path / "drained.json").write_text(damage)
    with pytest.raises(BadConfiguration, match=r"drained\.json"):
        WithheldList(ClusterState(tmp_path)).drained()
