"""Which request makes devices fail: by how often they end with it, and without it."""

import pytest

from coordinator.tasks.events import (
    Abort,
    Assign,
    Cancelled,
    Departure,
    Joined,
    Lost,
    RequestId,
    Submitted,
    Tick,
)
from coordinator.tasks.runs import LINGERS_S
from coordinator.tasks.scheduler import STRANDED_S, Scheduler
from coordinator.tasks.suspicion import REMEMBERED_S
from protos.errors import RequestAtFault
from tests.requests.sketches import A, B, C, chain, device, direct_chain, scheduler

POISON, OTHER = RequestId("poison"), RequestId("other")
WHOLE = [[(0, 12)]]
THIRDS = [(0, 4), (4, 8), (8, 12)]
QUARTERS = [(0, 3), (3, 6), (6, 9), (9, 12)]


def lost(
    state: Scheduler,
    name: str,
    departure: Departure = "crashed",
    request: RequestId | None = None,
    now: float = 0.0,
) -> list[RequestId]:
    """The requests that are aborted because of it."""
    return aborted(state.step(Lost(device(name), False, departure, request), now))


def aborted(actions) -> list[RequestId]:
    found = [each for each in actions if isinstance(each, Abort)]
    assert all(isinstance(each.error, RequestAtFault) and each.error.cure for each in found)
    return [each.request for each in found]


def devices_of(state: Scheduler, request: RequestId) -> list[str]:
    return sorted(state.requests[request].computing)


@pytest.mark.parametrize("graph", [chain(WHOLE), chain([THIRDS]), direct_chain([THIRDS, THIRDS])])
def test_a_request_is_tried_on_one_device_alone_after_two_ended(graph) -> None:
    state = scheduler("a", "b", "c", "d")
    state.step(Submitted(POISON, graph))
    assert lost(state, "a") == []
    assert lost(state, devices_of(state, POISON)[0]) == []
    assert state.requests[POISON].is_suspect
    assert lost(state, devices_of(state, POISON)[0]) == [POISON]
    assert POISON not in state.requests


def test_silence_is_nobodys_fault() -> None:
    state = scheduler("a", "b", "c", "d")
    state.step(Submitted(POISON, chain(WHOLE)))
    for name in "abc":
        assert lost(state, name, "gone") == []
    assert POISON in state.requests


def test_devices_that_end_without_the_request_speak_for_it() -> None:
    state = scheduler(*"abcdefgh")
    state.step(Submitted(POISON, chain(WHOLE)))
    for name in "gh":
        assert lost(state, name) == []  # nothing ran there
    for name in "ab":
        assert lost(state, name) == []
    # A minute later they are forgotten.
    assert lost(state, "c", now=REMEMBERED_S + 1) == []
    assert lost(state, "d", now=REMEMBERED_S + 1) == [POISON]


def test_of_several_each_is_computed_alone_until_one_is_found() -> None:
    state = scheduler("a", "b")
    for request in (OTHER, POISON):
        state.step(Submitted(request, chain(WHOLE, names="a")))
    for name in "ab":
        assert lost(state, name) == []
    state.step(Joined(C), 1.0)
    for name in "de":
        state.step(Joined(device(name)), 1.0)
    state.step(Tick(), 1.1)
    first, other = devices_of(state, POISON), devices_of(state, OTHER)
    assert len(first) == len(other) == 1
    assert first != other
    state.step(Submitted(RequestId("third"), chain(WHOLE, names=first[0])))
    assert lost(state, first[0]) == [POISON]
    assert set(state.requests) == {OTHER, RequestId("third")}


def test_suspect_waits_for_a_device_of_its_own_and_others_do_not_wait() -> None:
    state = scheduler("a", "b")
    for request in (OTHER, POISON):
        state.step(Submitted(request, chain(WHOLE, names="a")))
    for name in "ab":
        assert lost(state, name) == []
    back = state.step(Joined(A), 1.0)
    assert [each.request for each in back if isinstance(each, Assign)] == [OTHER]
    assert aborted(state.step(Tick(), STRANDED_S - 0.1)) == []
    assert aborted(state.step(Tick(), STRANDED_S)) == [POISON]
    assert devices_of(state, OTHER) == ["a"]


def test_request_beside_a_suspect_on_the_last_device_hides_nothing() -> None:
    state = scheduler("a", "b", "c")
    state.step(Submitted(POISON, chain(WHOLE)))
    for _ in range(2):
        assert lost(state, devices_of(state, POISON)[0]) == []
    state.step(Submitted(OTHER, chain(WHOLE)))
    (last,) = state.devices
    assert devices_of(state, POISON) == devices_of(state, OTHER) == [last]
    assert lost(state, last) == [POISON]
    assert OTHER in state.requests


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_devices_that_end_of_a_request_that_is_over_speak_against_nobody(is_cancelled) -> None:
    state = scheduler("a", "b", "c", "d")
    state.step(Submitted(POISON, chain([QUARTERS])))
    state.step(Submitted(OTHER, chain(WHOLE, names="b")))
    assert lost(state, "a") == lost(state, "b") == []
    assert devices_of(state, POISON) == ["c", "d"]
    if is_cancelled:
        state.step(Cancelled(POISON))
    assert lost(state, "c") == ([] if is_cancelled else [POISON])
    assert devices_of(state, OTHER) == ["d"]
    crashes = state.requests[OTHER].crashes
    assert lost(state, "d") == []
    assert state.requests[OTHER].crashes == crashes
    # Whoever comes back has nothing of it.
    state.step(Joined(device("d")), LINGERS_S / 2)
    assert lost(state, "d", now=LINGERS_S / 2) == ([] if is_cancelled else [OTHER])
    if is_cancelled:
        assert state.requests[OTHER].crashes == crashes + 1


def test_a_suspect_goes_on_when_a_device_is_free() -> None:
    state = scheduler("a", "b")
    for request in (OTHER, POISON):
        state.step(Submitted(request, chain(WHOLE, names="a")))
    for name in "ab":
        assert lost(state, name) == []
    state.step(Joined(A), 1.0)
    state.step(Joined(B), 2.0)
    state.step(Tick(), 3.0)
    assert devices_of(state, POISON) == ["b"]


def test_a_device_that_refuses_names_the_request() -> None:
    state = scheduler("a", "b", "c")
    for request in (OTHER, POISON):
        state.step(Submitted(request, chain([THIRDS])))
    assert lost(state, "a", "refused", POISON) == []
    state.step(Joined(A))
    assert lost(state, "b", "refused", POISON) == [POISON]
    assert OTHER in state.requests
    assert lost(state, "c", "refused", POISON) == []  # it has ended


def test_request_present_at_unnamed_refusals_is_suspected() -> None:
    state = scheduler("a", "b", "c")
    state.step(Submitted(POISON, chain(WHOLE)))
    assert lost(state, "a", "refused") == []
    (second,) = devices_of(state, POISON)
    assert second in (B, C)
    assert lost(state, second, "refused") == []
    assert lost(state, devices_of(state, POISON)[0], "refused") == [POISON]


def test_cancelled_task_may_still_end_its_device() -> None:
    """The first loss ends all exchange: devices are told to stop, and may not be in time."""
    state = scheduler(*"abcd")
    state.step(Submitted(POISON, direct_chain([[(0, 12)], QUARTERS])))
    assert lost(state, "a") == []
    assert lost(state, cancelled_on(state)[0]) == []
    assert lost(state, devices_of(state, POISON)[0]) == [POISON]


def test_cancelled_task_puts_no_other_request_at_fault() -> None:
    state = scheduler(*"abcd")
    state.step(Submitted(POISON, direct_chain([[(0, 12)], QUARTERS])))
    state.step(Submitted(OTHER, chain(WHOLE)))
    assert lost(state, "a") == []
    (where,) = devices_of(state, OTHER)
    assert where in cancelled_on(state)
    assert lost(state, where) == []
    # Each is a suspect, and is computed where nothing of the other can be left.
    clean, where = cancelled_on(state), devices_of(state, POISON)
    assert not set(clean) & set(devices_of(state, OTHER))
    assert lost(state, where[0]) == [POISON]


def test_cancelled_task_is_over_in_a_while() -> None:
    state = scheduler(*"abcd")
    state.step(Submitted(POISON, direct_chain([[(0, 12)], QUARTERS])))
    assert lost(state, "a") == []
    idle = cancelled_on(state)[0]
    state.step(Tick(), LINGERS_S)
    assert lost(state, idle, now=LINGERS_S) == []
    assert not state.requests[POISON].is_suspect


def cancelled_on(state: Scheduler) -> list[str]:
    """Devices that compute nothing of the poison request now, and did."""
    return sorted(state.devices.keys() - state.requests[POISON].computing)
