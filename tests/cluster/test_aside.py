"""Devices that get no work: drained ones outlive the coordinator."""

import pytest

from coordinator.cluster.aside import DRAINED_FILE, Aside
from coordinator.cluster.quarantine import FIRST_S, STRIKES
from coordinator.tasks.plan import DeviceId
from protos.errors import BadConfiguration, NotFound

A, B = DeviceId("a1"), DeviceId("b2")


def state_of(aside: Aside, device: DeviceId, now: float = 0.0) -> str:
    apart = aside.of(device, now)
    return apart.state if apart else ""


def test_from_draining_to_drained_and_back(tmp_path) -> None:
    aside = Aside(tmp_path)
    aside.drain(A, "pi-1")
    assert state_of(aside, A) == "draining"
    assert not aside.of(A, 0.0).is_out
    aside.finished(A)
    assert state_of(aside, A) == "drained"
    assert aside.of(A, 0.0).is_out
    assert "imbrex resume pi-1" in aside.of(A, 0.0).cure
    aside.resume(A, 0.0)
    assert state_of(aside, A) == ""


def test_it_outlives_the_coordinator(tmp_path) -> None:
    before = Aside(tmp_path)
    before.drain(A, "pi-1")
    before.drain(B, "pi-2")
    before.resume(B, 0.0)
    after = Aside(tmp_path)
    assert (state_of(after, A), state_of(after, B)) == ("drained", "")
    # Also while the device itself is away.
    assert after.find("pi-1") == after.find(A) == A
    after.resume(A, 0.0)
    assert state_of(Aside(tmp_path), A) == ""


def test_two_devices_of_one_name_are_told_apart_by_id(tmp_path) -> None:
    aside = Aside(tmp_path)
    aside.drain(A, "pi")
    aside.drain(B, "pi")
    assert aside.find("pi") is None
    assert aside.find(B) == B


def test_a_list_without_names_is_good_enough(tmp_path) -> None:
    (tmp_path / DRAINED_FILE).write_text('{"a1": {}}')
    assert Aside(tmp_path).find(A) == A


def test_a_person_can_end_a_quarantine(tmp_path) -> None:
    aside = Aside(tmp_path)
    for _ in range(STRIKES):
        aside.quarantine.accuse(A, "it sent int8", 0.0)
    assert state_of(aside, A) == "quarantined"
    assert state_of(aside, A, FIRST_S) == ""
    aside.resume(A, 1.0)
    assert state_of(aside, A, 1.0) == ""


def test_who_was_not_set_aside_cannot_be_resumed(tmp_path) -> None:
    with pytest.raises(NotFound, match="neither drained nor in quarantine"):
        Aside(tmp_path).resume(A, 0.0)


@pytest.mark.parametrize("damage", ["{", "[]", '{"a1": 3}'])
def test_a_damaged_list_is_named(tmp_path, damage) -> None:
    (tmp_path / DRAINED_FILE).write_text(damage)
    with pytest.raises(BadConfiguration, match=DRAINED_FILE):
        Aside(tmp_path)
