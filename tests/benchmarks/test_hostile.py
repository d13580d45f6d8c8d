"""Attacks on a real coordinator: all of them in `make test-slow`, the quick ones always."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.hostile import attacks
from benchmarks.hostile.attacks import Target, carried_out, families

ROOT = Path(__file__).parents[2]
# The table of findings.
FINDINGS = {f"H{number}" for number in range(1, 16)}
_QUICK = {"H2", "H3", "H4", "H5", "H7", "H8", "H10", "H15"}
NOWHERE = Target("http://127.0.0.1:1", "127.0.0.1:1")


def ran(*flags: str) -> dict[str, object]:
    command = [sys.executable, "-m", "benchmarks.hostile", "--json", *flags]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.stdout, done.stderr[-3000:]
    found = json.loads(done.stdout)
    failed = [row for row in found["attacks"] if not row["ok"]]
    assert (failed, done.returncode) == ([], 0)
    return found


def test_the_quick_attacks_end_as_expected() -> None:
    found = ran("--quick")
    rows = found["attacks"]
    assert isinstance(rows, list)
    assert {row["finding"] for row in rows} >= _QUICK
    assert all(row["genuine_during"]["answered"] for row in rows)


@pytest.mark.slow
def test_every_attack_ends_as_expected() -> None:
    assert len(ran()["attacks"]) == len(families())  # type: ignore[arg-type]


def test_every_finding_is_tried_and_every_attack_says_what_it_does() -> None:
    found = families().values()
    assert {each.finding for each in found} >= FINDINGS
    assert all(each.expected and each.run.__doc__ for each in found)


@pytest.mark.parametrize("name", ["npy-version-1", "a-name-that-leads-here", "idle-connections"])
def test_an_attack_that_cannot_be_made_has_failed(name: str) -> None:
    assert not carried_out(name, NOWHERE).ok


def test_two_attacks_have_two_names() -> None:
    (first, *_) = families().values()
    with pytest.raises(AssertionError, match="there are two"):
        attacks.attack("H0", "nothing")(first.run)
