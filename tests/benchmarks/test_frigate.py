"""Frigate's crops: what counts as missed, and the network that stands for a detector's."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.frigate import CROPS, Asked, _crops, save_model, summary


def asked(count: int, seconds: float = 0.1, *, first_s: float = 0.0, **what: bool) -> list[Asked]:
    told = {"empty": False, "wrong": False, **what}
    return [Asked(first_s + number, seconds, **told) for number in range(count)]


def test_good_run_misses_no_goal() -> None:
    found = summary(asked(2000), asked(2000, first_s=3000.0), 2999.0, 0.2)
    assert found["missed"] == []
    assert (found["crops"], found["in_time"], found["empty_after_kill"]) == (4000, 1.0, 0)


@pytest.mark.parametrize(
    ("well", "after", "missed"),
    [
        ([*asked(2000), *asked(1, empty=True)], asked(9), ["no empty answer"]),
        ([*asked(990), *asked(10, 0.21)], asked(9), ["in time", "in Frigate's default time"]),
        (asked(9), asked(6, first_s=-5.0, empty=True), ["empty after the kill"]),
        (asked(9), asked(1, first_s=2.1, empty=True), ["within two seconds"]),
        (asked(9), asked(1, wrong=True), ["right"]),
    ],
)
def test_missed_goals_are_named(well: list[Asked], after: list[Asked], missed: list[str]) -> None:
    assert summary(well, after, 0.0, 0.2)["missed"] == missed


def test_a_longer_timeout_does_not_hide_what_is_late_by_default() -> None:
    found = summary([*asked(990), *asked(10, 0.21)], asked(9), 0.0, 0.4)
    assert (found["in_time"], found["missed"]) == (1.0, ["in Frigate's default time"])


def test_network_of_the_benchmark_finds_something_in_every_crop(tmp_path: Path) -> None:
    crops, expected = _crops(save_model(tmp_path))
    assert len(crops) == len(expected) == CROPS
    assert all(rows.shape == (20, 6) and rows.any() for rows in expected)
    assert any((expected[0] != rows).any() for rows in expected[1:])
