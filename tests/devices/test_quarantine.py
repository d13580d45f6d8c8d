"""Who gives wrong results is left out for a while, and gets another chance."""

from coordinator.devices.withheld import (
    FIRST_S,
    LAST_S,
    MOST_RECORDS,
    PROBATION_S,
    STRIKES,
    STRIKES_WITHIN_S,
    Quarantine,
)
from protos.wire.facts import DeviceId

A, B = DeviceId("a"), DeviceId("b")


def strikes(state: Quarantine, now: float, times: int = STRIKES) -> list[float]:
    return [state.accuse(A, "it sent int8", now) for _ in range(times)]


def test_the_third_wrong_result_is_one_too_many() -> None:
    state = Quarantine()
    assert strikes(state, 10.0) == [0.0, 0.0, FIRST_S]
    assert "it sent int8" in state.reason(A, 10.0)
    assert state.reason(A, 10.0 + FIRST_S) == ""
    assert state.reason(B, 10.0) == ""
    # What it had been given still comes in: that is old news.
    assert state.accuse(A, "late", 11.0) == 0.0


def test_now_and_then_is_no_habit() -> None:
    state = Quarantine()
    for hour in range(20):
        assert strikes(state, hour * STRIKES_WITHIN_S, STRIKES - 2) == [0.0] * (STRIKES - 2)


def test_repeat_offender_is_left_out_for_longer_each_time() -> None:
    state, now = Quarantine(), 0.0
    seconds = strikes(state, now)[-1]
    for _ in range(10):
        now += seconds + 1
        longer = state.accuse(A, "again", now)
        assert longer == min(LAST_S, 2 * seconds)
        seconds = longer
    assert seconds == LAST_S


def test_device_that_behaves_has_a_clean_record_again() -> None:
    state = Quarantine()
    strikes(state, 0.0)
    later = FIRST_S + PROBATION_S + 1
    assert strikes(state, later) == [0.0, 0.0, FIRST_S]


def test_made_up_devices_do_not_fill_the_memory() -> None:
    state = Quarantine()
    for number in range(2 * MOST_RECORDS):
        state.accuse(DeviceId(f"d{number}"), "it sent int8", 0.0)
    assert len(state._records) == MOST_RECORDS


def test_a_pardon_forgets_everything() -> None:
    state = Quarantine()
    strikes(state, 0.0)
    state.pardon(A)
    assert state.reason(A, 0.0) == ""
    assert strikes(state, 1.0) == [0.0, 0.0, FIRST_S]


def test_convicted_device_stays_out_until_it_is_pardoned() -> None:
    state, device = Quarantine(), DeviceId("a")
    assert state.convict(device, "task 3 is off by 0.01")
    assert not state.convict(device, "task 4 is off by 0.02")
    assert "task 4 is off by 0.02" in state.reason(device, 1e9)
    assert state.accuse(device, "it sent int8", 1e9) == 0.0
    for number in range(2 * MOST_RECORDS):
        state.accuse(DeviceId(f"d{number}"), "it sent int8", 0.0)
    assert state.reason(device, 1e9)
    state.pardon(device)
    assert not state.reason(device, 1e9)
