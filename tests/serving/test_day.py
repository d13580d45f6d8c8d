"""The last day on the page: kept over a restart, in a file that never grows."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from coordinator.serving.page.day import (
    MINUTES,
    MOST_TIMED,
    SIZE_BYTES,
    STEP,
    Day,
    Minute,
    _weighted_median,
)
from tests.serving.in_place import picture

NOON = 1_700_000_000 // 86_400 * 86_400 + 43_200.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "day.ring"


def sums(day: Day, now_s: float = NOON) -> tuple[int, int]:
    columns = day.columns(now_s)
    return sum(each.answered for each in columns), sum(each.failed for each in columns)


def filled(file: Path) -> Day:
    """Two hours of one answer each minute, and one error in each hour."""
    day = Day(file)
    for minute in range(120):
        at = NOON - 7200 + 60 * minute
        day.add(at, 0.1 + 0.001 * minute, answered=True)
        if minute % 60 == 0:
            day.add(at + 1, 2.0, answered=False)
    return day


def test_requests_are_counted_in_columns(file: Path) -> None:
    day = filled(file)
    columns = day.columns(NOON)
    assert len(columns) == MINUTES // STEP
    assert [each.answered for each in columns[-14:]] == [0, *[10] * 12, 0]
    assert columns[-13].failed == 1
    assert columns[-13].median_s == pytest.approx(0.104, abs=1e-6)
    assert columns[-13].slowest_s == pytest.approx(0.109, abs=1e-6)
    assert sums(day, NOON + 86_400 + 600) == (0, 0)
    assert sums(day, NOON - 86_400) == (0, 0)


def test_last_day_survives_a_restart_within_a_minute(file: Path) -> None:
    day = filled(file)
    day.add(NOON + 1, 0.5, answered=True)
    day.close()
    assert file.stat().st_size == SIZE_BYTES
    with capture_logs() as logs:
        again = Day(file)
    assert not logs
    again.add(NOON + 2, 0.7, answered=True)
    assert sums(again) == (122, 2)
    again.close()
    assert sums(Day(file)) == (122, 2)
    assert file.stat().st_size == SIZE_BYTES


def test_a_day_later_minutes_take_the_places_of_the_first(file: Path) -> None:
    day = filled(file)
    for minute in range(120):
        day.add(NOON + 86_400 - 7200 + 60 * minute, 0.2, answered=False)
    day.close()
    assert sums(Day(file), NOON + 86_400) == (0, 120)
    assert file.stat().st_size == SIZE_BYTES


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"{" + data[1:],
        lambda data: bytes(len(data)),
        lambda data: b"\xff" * (1 << 20),
    ],
)
def test_a_damaged_file_is_replaced_and_said_so(file: Path, damage) -> None:
    filled(file).close()
    file.write_bytes(damage(file.read_bytes()))
    with capture_logs() as logs:
        day = Day(file)
    (told,) = logs
    assert told["event"] == "the last day was damaged and begins anew"
    assert told["file"] == str(file)
    assert sums(day) == (0, 0)
    day.add(NOON, 0.1, answered=True)
    day.close()
    with capture_logs() as logs:
        assert sums(Day(file)) == (1, 0)
    assert not logs


def test_a_minute_that_was_half_written_is_the_only_one_lost(file: Path) -> None:
    filled(file).close()
    data = bytearray(file.read_bytes())
    place = next(k for k in range(16, SIZE_BYTES, 24) if any(data[k : k + 24]))
    data[place + 9] ^= 1
    file.write_bytes(data)
    with capture_logs() as logs:
        day = Day(file)
    assert logs[0]["lost"] == 1
    assert sums(day)[0] == 119
    day.add(NOON, 0.1, answered=True)
    day.close()
    with capture_logs() as logs:
        assert sums(Day(file))[0] == 120
    assert not logs


@given(st.binary(max_size=2 * SIZE_BYTES))
def test_file_of_any_bytes_is_read_or_refused(tmp_path_factory, data: bytes) -> None:
    file = tmp_path_factory.mktemp("any") / "day.ring"
    file.write_bytes(data)
    with capture_logs():
        assert len(Day(file).columns(NOON)) == MINUTES // STEP


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can be longer than a hundred bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_costs_nothing_but_the_file(file: Path) -> None:
    with full_disk(), capture_logs() as logs:
        day = filled(file)
        day.close()
    assert [each["event"] for each in logs] == [
        "the last day cannot be written and will not survive a restart"
    ]
    assert sums(day) == (120, 2)
    assert not list(file.parent.iterdir())
    day.add(NOON, 0.1, answered=True)
    day.close()
    assert sums(Day(file)) == (121, 2)


def test_a_file_that_is_gone_is_written_again(file: Path) -> None:
    day = filled(file)
    day.close()
    file.unlink()
    for minute in (0, 1, 2):
        day.add(NOON + 60 * minute, 0.1, answered=True)
    day.close()
    assert sums(Day(file), NOON + 200) == (123, 2)


def test_a_folder_in_its_place_is_no_reason_to_stop(file: Path) -> None:
    file.mkdir()
    with capture_logs() as logs:
        assert sums(filled(file)) == (120, 2)
    assert all(each["file"] == str(file) for each in logs)
    assert len(logs) == 2


def test_latencies_of_a_minute_have_a_cap(file: Path) -> None:
    day = Day(file)
    for _ in range(MOST_TIMED + 5):
        day.add(NOON, 0.1, answered=True)
    assert len(day._times) == MOST_TIMED
    assert sums(day) == (MOST_TIMED + 5, 0)


def test_a_median_counts_each_value_as_often_as_it_was_measured() -> None:
    assert _weighted_median([(3.0, 1), (1.0, 1), (2.0, 1)]) == 2.0
    assert _weighted_median([(1.0, 1), (9.0, 100)]) == 9.0
    assert _weighted_median([]) == 0.0
    assert Minute(1).median_s == 0.0


@pytest.mark.needs_room("coordinator/serving/page")
@pytest.mark.needs_room("coordinator/serving/oip")
async def test_the_page_gets_it(http: httpx.AsyncClient) -> None:
    assert (await http.post("/v1/models/tiny/infer", content=picture())).status_code == 200
    assert (await http.post("/v1/models/tiny/infer", content=b"no picture")).status_code == 400
    columns = (await http.get("/page/day")).json()["columns"]
    assert len(columns) == MINUTES // STEP
    assert sum(each["answered"] for each in columns) == 1
    assert columns[-1]["median_ms"] is None or columns[-1]["median_ms"] > 0
    assert columns[0]["median_ms"] is None
    assert columns[-1]["from"] % (STEP * 60) == 0
