"""AOFL's Table 2 and Figure 12: which devices are used, and what that saves."""

import pytest

from benchmarks.published import CASES, Case
from benchmarks.table2 import table2
from benchmarks.testbed import CALIBRATIONS

Rows = dict[tuple[str, str], dict]


@pytest.fixture(scope="module")
def rows() -> Rows:
    return {(row["calibration"], row["case"]): row for row in table2()["rows"]}


@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_case_1_1_selects_the_two_fastest(calibration: str, rows: Rows) -> None:
    row = rows[calibration, "1-1"]
    assert row["selection_as_published"]
    assert row["aofl_s"] <= row["selection_s"] < row["equal_s"]
    # The planner's unequal tiles use the slow ones a little, and never for the last block.
    assert row["aofl_blocks"][-1] == 2
    slow = max(share for name, share in row["flop_shares"].items() if name not in ("pi-1", "pi-2"))
    assert min(row["flop_shares"][name] for name in ("pi-1", "pi-2")) > 2.5 * slow


def test_case_1_1_saves_what_was_published(rows: Rows) -> None:
    """By unequal tiles on all; the selection of two alone saves less."""
    assert 0 < rows["a", "1-1"]["selection_saves_percent"] < 15.8
    assert rows["a", "1-1"]["aofl_saves_percent"] == pytest.approx(15.8, abs=1)


@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_case_1_2_sends_the_whole_input_to_the_four_cores(calibration: str, rows: Rows) -> None:
    row = rows[calibration, "1-2"]
    assert row["selection_as_published"]
    assert row["aofl_as_published"]
    assert row["aofl_blocks"] == [1]
    assert row["flop_shares"] == {"pi-1": 1.0}


@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_case_2_1_leaves_out_the_two_slowest(calibration: str, rows: Rows) -> None:
    row = rows[calibration, "2-1"]
    assert row["selection_as_published"]
    assert row["aofl_as_published"]
    assert row["selection_saves_percent"] == pytest.approx(18.7, abs=3)
    assert row["aofl_saves_percent"] > row["selection_saves_percent"]


@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_case_2_2_uses_all_eight_with_unequal_tiles(calibration: str, rows: Rows) -> None:
    row = rows[calibration, "2-2"]
    assert row["aofl_as_published"]
    assert row["aofl_saves_percent"] == pytest.approx(12.3, abs=4)
    assert row["flop_shares"]["pi-8"] < row["flop_shares"]["pi-3"] < row["flop_shares"]["pi-1"]
    assert row["selection_devices"] == 6


def test_decision_differs_for_other_devices() -> None:
    """Of eight like devices neither two are used (case 1-1) nor one (case 1-2)."""
    alike = Case("1-1", 8 * (1.0,), 2, None)
    row = table2([alike])["rows"][0]
    assert not row["selection_as_published"]
    assert not row["aofl_as_published"]
    four_cores_off = Case("1-2", CASES[1].ghz, 1, None)
    row = table2([four_cores_off])["rows"][0]
    assert not row["aofl_as_published"]
