"""Devices that get no work: what happens to them, and exactly what is to be done."""

from math import inf

import pytest

from coordinator.control.actions import Empty, LeaveOut, Replan, Withdraw
from coordinator.control.events import (
    Drained,
    Emptied,
    Replanned,
    Resumed,
    Tick,
    Wrong,
)
from coordinator.control.quarantine import FIRST_S, STRIKES
from coordinator.control.withheld import PATIENCE_S, Withheld
from coordinator.runtime.withheld_list import MOST_QUARANTINED, WithheldList
from coordinator.trust.cluster_state import LocalState
from protos.errors import BadConfiguration
from protos.wire.facts import DeviceId

A, B = DeviceId("a1"), DeviceId("b2")


def state_of(withheld: Withheld, device: DeviceId, now: float = 0.0) -> str:
    apart = withheld.of(device, now)
    return apart.state if apart else ""


def test_from_draining_to_drained_and_back() -> None:
    withheld = Withheld({})
    assert withheld.step(Drained(A, "pi-1"), 0.0) == [Replan("a1 is drained"), Empty(A)]
    assert withheld.step(Drained(A, "pi-1"), 0.1) == []
    assert state_of(withheld, A) == "draining"
    assert not withheld.of(A, 0.0).is_out
    assert withheld.step(Replanned(A), 1.0) == []
    assert withheld.step(Emptied(A), 2.0) == [Withdraw(A)]
    assert withheld.step(Emptied(A), 2.0) == []
    assert state_of(withheld, A) == "drained"
    assert withheld.of(A, 0.0).is_out
    assert "imbrex resume pi-1" in withheld.of(A, 0.0).cure
    assert withheld.due_s == inf
    assert withheld.step(Resumed(A), 3.0) == [Replan("a1 is resumed")]
    assert state_of(withheld, A) == ""


def test_patience_begins_when_nothing_new_is_planned_for_it() -> None:
    withheld = Withheld({})
    withheld.step(Drained(A, "pi-1"), 0.0)
    assert withheld.due_s == inf
    withheld.step(Replanned(A), 100.0)
    assert withheld.due_s == 100.0 + PATIENCE_S
    assert withheld.step(Tick(), 99.0 + PATIENCE_S) == []
    assert withheld.step(Tick(), 100.0 + PATIENCE_S) == [Withdraw(A)]
    assert state_of(withheld, A) == "drained"


def test_one_that_is_resumed_meanwhile_is_not_withdrawn() -> None:
    withheld = Withheld({})
    withheld.step(Drained(A, "pi-1"), 0.0)
    assert withheld.step(Resumed(A), 1.0) == [Replan("a1 is resumed")]
    assert withheld.step(Replanned(A), 2.0) == []
    assert withheld.step(Emptied(A), 3.0) == []
    assert (withheld.due_s, state_of(withheld, A)) == (inf, "")


def test_one_wrong_result_too_many_and_then_another_chance() -> None:
    withheld = Withheld({})
    found = [withheld.step(Wrong(A, "it sent int8"), 0.0) for _ in range(STRIKES)]
    left_out = [LeaveOut(A, "it sent int8", FIRST_S), Replan("a1 is quarantined")]
    assert found == [[]] * (STRIKES - 1) + [left_out]
    assert state_of(withheld, A) == "quarantined"
    assert withheld.step(Wrong(A, "late"), 1.0) == []
    assert withheld.due_s == FIRST_S
    assert withheld.step(Tick(), FIRST_S - 0.1) == []
    assert withheld.step(Tick(), FIRST_S) == [Replan("a1 is tried again")]
    assert (state_of(withheld, A, FIRST_S), withheld.due_s) == ("", inf)


def test_a_person_can_end_a_quarantine() -> None:
    withheld = Withheld({})
    for _ in range(STRIKES):
        withheld.step(Wrong(A, "it sent int8"), 0.0)
    withheld.step(Resumed(A), 1.0)
    assert (state_of(withheld, A, 1.0), withheld.due_s) == ("", inf)


def test_who_is_convicted_is_left_out_once_and_for_all() -> None:
    withheld = Withheld({})
    for _ in range(STRIKES):
        withheld.step(Wrong(A, "it sent int8"), 0.0)
    assert withheld.step(Wrong(A, "task 3 is off", proven=True), 1.0) == [
        LeaveOut(A, "task 3 is off", inf),
        Replan("a1 is quarantined"),
    ]
    assert withheld.step(Wrong(A, "task 4 is off", proven=True), 2.0) == []
    assert withheld.due_s == inf
    assert state_of(withheld, A, 1e9) == "quarantined"
    withheld.step(Resumed(A), 1e9)
    assert state_of(withheld, A, 1e9) == ""


def test_who_is_convicted_while_it_drains_finishes_nothing() -> None:
    withheld = Withheld({})
    withheld.step(Drained(A, "pi-1"), 0.0)
    withheld.step(Wrong(A, "task 3 is off", proven=True), 1.0)
    assert (state_of(withheld, A), withheld.of(A, 1.0).is_out) == ("quarantined", True)
    withheld.step(Resumed(A), 2.0)
    assert state_of(withheld, A) == ""


def test_two_devices_of_one_name_are_told_apart_by_id() -> None:
    withheld = Withheld({A: "pi"})
    assert withheld.find("pi") == withheld.find(A) == A
    withheld.step(Drained(B, "pi"), 0.0)
    assert withheld.find("pi") is None
    assert withheld.find(B) == B


def test_the_list_outlives_the_coordinator(tmp_path) -> None:
    before = WithheldList(LocalState(tmp_path))
    before.drain(A, "pi-1")
    before.drain(B, "pi-2")
    before.resume(B)
    before.resume(B)
    after = Withheld(WithheldList(LocalState(tmp_path)).drained())
    assert (state_of(after, A), state_of(after, B)) == ("drained", "")
    # Also while the device itself is away.
    assert after.find("pi-1") == A
    before.quarantine(B, "task 4 is off")
    before.quarantine(B, "another")
    assert WithheldList(LocalState(tmp_path)).quarantined() == {B: "task 4 is off"}
    before.resume(B)
    assert before.quarantined() == {}


def test_made_up_devices_do_not_fill_the_list(tmp_path) -> None:
    listed = WithheldList(LocalState(tmp_path))
    for number in range(MOST_QUARANTINED + 1):
        listed.quarantine(DeviceId(f"{number}"), "x" * 10_000)
    assert len(listed.quarantined()) == MOST_QUARANTINED
    assert max(map(len, listed.quarantined().values())) == 500


def test_a_list_without_names_is_good_enough(tmp_path) -> None:
    (tmp_path / "drained.json").write_text('{"a1": {}}')
    assert WithheldList(LocalState(tmp_path)).drained() == {A: "a1"}


@pytest.mark.parametrize("damage", ["{", "[]", '{"a1": 3}'])
def test_a_damaged_list_is_named(tmp_path, damage) -> None:
    (tmp_path / "drained.json").write_text(damage)
    with pytest.raises(BadConfiguration, match=r"drained\.json"):
        WithheldList(LocalState(tmp_path)).drained()
