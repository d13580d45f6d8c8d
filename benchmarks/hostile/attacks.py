"""What an attack is, and all of them by name.

An attack is a function of a `Target` that does its worst within bounds, and tells what happened.
It runs in a process of its own. Another file joins by being imported in `families`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MB = 1 << 20
# What any attack may make the coordinator hold, above what it held before: three largest bodies.
MOST_GROWN_BYTES = 3 * 64 * MB
# Files of attacks, one for each family.
FAMILIES = (
    *("decoders", "slow", "callers", "crowds"),
    *("plans", "lies", "announcements", "authorities", "sharing", "streams", "poison"),
)
# In a place's folder: what its liar reads, and the state of the worker that comes late.
LIE, LATE = "lie", "late"
# And the repository of networks with inputs of every form.
MODELS = "models"
# Whence attackers come who are not to share the genuine client's address (all of 127/8 is ours).
ELSEWHERE = "127.0.0.2"


@dataclass(frozen=True, slots=True)
class Target:
    """The coordinator that is attacked; `key` is one that may ask, where keys are in use. `folder`
    has its state directory and its workers'; `late` is where it expects a worker that is not there.
    """

    url: str
    grpc: str
    key: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    folder: Path = Path()
    workers: tuple[str, ...] = ()
    late: str = ""
    pid: int = 0

    @property
    def port(self) -> int:
        """Of HTTP."""
        return int(self.url.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class Happened:
    """What the attacker saw, and whether that is as it should be."""

    ok: bool
    what: str
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attack:
    """`finding` is the number in the table of findings; `place` the settings of the coordinator it
    is made on. `patient_s`: what a request of the genuine client may take meanwhile; 0 where the
    attack is itself a crowd of genuine ones.
    """

    name: str
    finding: str
    expected: str
    run: Callable[[Target], Happened]
    place: str = "open"
    quick: bool = False
    most_grown_bytes: int = MOST_GROWN_BYTES
    patient_s: float = 2.0


_ATTACKS: dict[str, Attack] = {}
# The target is another process that notifies nobody, so its state is polled.
_POLL_S = 0.05


def comes_true(holds: Callable[[], bool], within_s: float) -> bool:
    """Whether a condition holds within this time."""
    deadline = time.monotonic() + within_s
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return held


def attack(
    finding: str, expected: str, **more: Any
) -> Callable[[Callable[[Target], Happened]], Callable[[Target], Happened]]:
    """Registers a function as an attack under its own name."""

    def register(run: Callable[[Target], Happened]) -> Callable[[Target], Happened]:
        name = run.__name__.replace("_", "-")
        assert run.__doc__, f"{name} says what it does"
        assert name not in _ATTACKS, f"there are two {name}"
        _ATTACKS[name] = Attack(name, finding, expected, run, **more)
        return run

    return register


def families() -> dict[str, Attack]:
    """Every attack by its name."""
    for family in FAMILIES:
        importlib.import_module(f"benchmarks.hostile.{family}")
    return dict(_ATTACKS)


def carried_out(name: str, target: Target) -> Happened:
    """One attack, wherever this runs; what it breaks itself counts as failed."""
    try:
        return families()[name].run(target)
    except Exception as error:
        return Happened(False, f"the attack itself failed: {type(error).__name__}: {error}"[:300])
