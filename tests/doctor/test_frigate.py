"""Whether Frigate is answered in time: what the log and the check list say of it."""

from __future__ import annotations

import pytest

from coordinator.doctor.examine import diagnose
from coordinator.doctor.findings import Examined
from coordinator.doctor.frigate import in_time
from tests.doctor.patients import VERSION, patient


@pytest.mark.parametrize(
    ("predicted_s", "detectors", "holds", "timeout_ms"),
    [
        (0.02, 1, True, 200),
        (0.133, 1, True, 200),
        (0.134, 1, False, 300),
        (0.199, 1, False, 300),
        (0.201, 1, False, 400),
        (0.066, 2, True, 200),
        (0.133, 2, False, 400),
        (0.133, 3, False, 600),
    ],
)
def test_the_timeout_is_enough_for_the_slowest_of_all_detectors(
    predicted_s: float, detectors: int, *, holds: bool, timeout_ms: int
) -> None:
    found = in_time(predicted_s, detectors)
    assert (found.holds, found.cure) == (holds, f"set request_timeout_ms: {timeout_ms} or more")
    assert found.slowest_s * 1e3 <= timeout_ms


def test_the_doctor_warns_with_the_setting_to_change() -> None:
    examined = Examined(version=VERSION, patients=(patient("a"), patient("b")))
    found = diagnose(examined, frigate=in_time(0.12, 2))
    (row,) = [each for each in found.checks if each.what == "frigate"]
    assert (row.device, row.state) == ("coordinator", "warning")
    assert row.seen == "120 ms predicted, 360 ms at most with 2 detectors"
    (warning,) = found.findings
    assert (warning.code, warning.severity) == ("frigate_timeout", "warning")
    assert "set request_timeout_ms: 400 or more" in warning.cure


def test_detector_in_time_is_a_row_and_no_finding() -> None:
    examined = Examined(version=VERSION, patients=(patient("a"), patient("b")))
    found = diagnose(examined, frigate=in_time(0.05, 1))
    assert [each.state for each in found.checks if each.what == "frigate"] == ["ok"]
    assert found.findings == ()
    assert [each for each in diagnose(examined).checks if each.what == "frigate"] == []
