"""What a stranger can do to a coordinator, tried: does it answer, and remember, as it should?

    python -m benchmarks.hostile --json
    python -m benchmarks.hostile --quick
    python -m benchmarks.hostile --only H3 --only npy-version-2

Every attack is made on a real coordinator with two workers, on loopback, bounded in count and time,
from a process of its own. Meanwhile a genuine client asks, from another process. Of each is told
what was expected, what happened, how much the coordinator's resident memory grew at its peak, and
what the genuine client saw: errors, and times beside those of the seconds before. An attack that
could not be made counts as failed. Exits with 0 only if all ended as expected.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import groupby
from pathlib import Path
from typing import Any

import psutil

from benchmarks.hostile.attacks import FAMILIES, MB, Attack, Happened, carried_out, families
from benchmarks.hostile.places import Answered, Place, place
from benchmarks.report import command_line, emit

# What the genuine client sees in quiet is taken from these seconds before an attack.
QUIET_S = 2.0
# Of the quick ones, whose figures nobody compares.
QUICK_QUIET_S = 0.5
# No attack takes longer: they are bounded.
LONGEST_S = 240.0
_SAMPLE_S = 0.02
# Processes for attacks, from one that has imported all of them.
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload([f"benchmarks.hostile.{family}" for family in FAMILIES])


def main() -> int:
    """The exit code."""
    parser = command_line(__doc__)
    parser.add_argument("--quick", action="store_true", help="only those that take seconds")
    parser.add_argument("--only", action="append", metavar="NAME", help="an attack or H number")
    chosen = parser.parse_args()
    wanted = [
        family for family in families().values() if _is_wanted(family, chosen.quick, chosen.only)
    ]
    wanted.sort(key=lambda family: family.place)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, group in groupby(wanted, key=lambda each: each.place):
            with place(name, Path(folder)) as at:
                rows += [
                    _made(one, at, QUICK_QUIET_S if chosen.quick else QUIET_S) for one in group
                ]
    failed = [row["attack"] for row in rows if not row["ok"]]
    lines = [_line(row) for row in rows]
    verdict = f"{len(rows) - len(failed)} of {len(rows)} attacks ended as expected"
    emit({"ok": not failed, "attacks": rows}, chosen, "\n".join([*lines, "", verdict]))
    return 0 if rows and not failed else 1


def _is_wanted(attack: Attack, quick: bool, only: list[str] | None) -> bool:
    if only:
        return attack.name in only or attack.finding in only
    return attack.quick or not quick


def _made(attack: Attack, at: Place, quiet_s: float) -> dict[str, Any]:
    """One attack after so many seconds of quiet, and everything that is told of it."""
    time.sleep(quiet_s)  # the genuine client asks meanwhile: what an attack is compared with
    memory = _Memory(at.pid)
    before_s = time.monotonic()
    happened = _elsewhere(attack, at)
    after_s = time.monotonic()
    grown = memory.grown_bytes()
    quiet = at.genuine.between(before_s - quiet_s, before_s)
    during = at.genuine.between(before_s, after_s)
    errors = [answer.error for answer in during if answer.error]
    served = attack.patient_s == 0 or (
        bool(during) and not errors and max(answer.seconds for answer in during) <= attack.patient_s
    )
    return {
        "attack": attack.name,
        "finding": attack.finding,
        "did": " ".join((attack.run.__doc__ or "").split()),
        "expected": attack.expected,
        "happened": happened.what,
        **happened.figures,
        "seconds": round(after_s - before_s, 1),
        "peak_mb": round(memory.peak_bytes / MB),
        "grown_mb": round(grown / MB),
        "most_grown_mb": round(attack.most_grown_bytes / MB),
        "genuine_before": _figures(quiet),
        "genuine_during": _figures(during),
        "genuine_errors": sorted(set(errors))[:3],
        "ok": happened.ok and served and grown <= attack.most_grown_bytes,
    }


def _elsewhere(attack: Attack, at: Place) -> Happened:
    """In a process of its own, ended if it does not end."""
    with ProcessPoolExecutor(1, _FORKED) as pool:
        made = pool.submit(carried_out, attack.name, at.target)
        try:
            return made.result(LONGEST_S)
        except (TimeoutError, BrokenProcessPool) as error:
            for process in multiprocessing.active_children():
                process.kill()
            return Happened(False, f"the attack did not end ({type(error).__name__})")


class _Memory:
    """Resident memory of a process, watched until it is asked for."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._idle_bytes = self.peak_bytes = self._process.memory_info().rss
        self._done = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def grown_bytes(self) -> int:
        """The peak, above what it was."""
        self._done.set()
        self._watching.join()
        return self.peak_bytes - self._idle_bytes

    def _watch(self) -> None:
        while not self._done.wait(_SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, self._process.memory_info().rss)


def _figures(answered: list[Answered]) -> dict[str, Any]:
    seconds = sorted(answer.seconds for answer in answered if not answer.error)
    if not seconds:
        return {"answered": 0, "errors": len(answered)}
    return {
        "answered": len(seconds),
        "errors": len(answered) - len(seconds),
        "p50_ms": round(1000 * seconds[len(seconds) // 2]),
        "p99_ms": round(1000 * seconds[int(0.99 * (len(seconds) - 1))]),
    }


def _line(row: dict[str, Any]) -> str:
    before, during = row["genuine_before"], row["genuine_during"]
    return (
        f"{'ok  ' if row['ok'] else 'FAIL'} {row['finding']:4} {row['attack']}: {row['happened']}\n"
        f"          {row['seconds']} s; +{row['grown_mb']} MB; genuine p50 "
        f"{before.get('p50_ms', '-')} -> {during.get('p50_ms', '-')} ms, p99 "
        f"{before.get('p99_ms', '-')} -> {during.get('p99_ms', '-')} ms, "
        f"{during['errors']} errors {row['genuine_errors'] or ''}"
    )


if __name__ == "__main__":
    sys.exit(main())
