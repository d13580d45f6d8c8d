"""How long a device lies before it is found: by the audit of requests alone, and by the doctor."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.chaos.harm import PACES
from benchmarks.chaos.lying import LIES
from benchmarks.chaos.places import Place, here
from benchmarks.workers import WorkerProcess, questions
from coordinator.answers import DeviceStatus, PlanChoice
from coordinator.audit.sampling import MOST, YOUNG_CHECKS, YOUNG_SHARE
from coordinator.serving.common import names
from coordinator.serving.common.tensors import write_tensors
from coordinator.settings import CoordinatorSettings
from models.run.reference import compare

WORKERS = 3
STRATEGIES = ("halo", "ofl", "lw")
EXACT = 1e-5
# So many tasks of a device are computed before one of them is checked, at most.
ASKED_TASKS = 400
# A new device is left alone for so many tasks at most.
LONGEST_YOUNG_TASKS = int(MOST * CoordinatorSettings().audit_every / YOUNG_SHARE)
_QUARANTINED = "quarantined"


async def measure(tries: int, model: str) -> dict[str, Any]:
    """Everything that is printed: each try is a cluster of its own, in which one device begins to
    lie when it has computed honestly for a while.
    """
    found = []
    for number in range(tries):
        kind = list(LIES)[number % len(LIES)]
        strategy = STRATEGIES[number // len(LIES) % len(STRATEGIES)]
        found.append(await _try(kind, strategy, model, by_doctor=False))
    doctor = [await _try(kind, "halo", model, by_doctor=True) for kind in LIES]
    return {
        "tries": found,
        "doctor": doctor,
        "worst_tasks": max((lie["tasks"] for lie in found), default=0),
        "asked_tasks": ASKED_TASKS,
        "missed": sum(not lie["found"] for lie in (*found, *doctor)),
        "accused_wrongly": sum(lie["accused_wrongly"] for lie in (*found, *doctor)),
        "model": model,
        "workers": WORKERS,
    }


def is_bad(result: dict[str, Any]) -> bool:
    """Whether one was missed or found too late, or an honest device was accused."""
    late = result["worst_tasks"] > ASKED_TASKS
    return bool(result["missed"] or late or result["accused_wrongly"])


def lines(result: dict[str, Any]) -> list[str]:
    """The same for people."""
    tasks = ", ".join(str(attempt["tasks"]) for attempt in result["tries"])
    wrong = ", ".join(str(attempt["wrong_answers"]) for attempt in result["tries"])
    return [
        f"{len(result['tries'])} devices that began to lie computed {tasks} tasks until the audit "
        f"found them (asked: {ASKED_TASKS} at most)",
        f"answers that were wrong until then: {wrong}",
        f"the doctor found {sum(lie['found'] for lie in result['doctor'])} of "
        f"{len(result['doctor'])} at once; {result['missed']} missed, "
        f"{result['accused_wrongly']} honest devices accused",
    ]


async def _try(kind: str, strategy: str, model: str, *, by_doctor: bool) -> dict[str, Any]:
    (feeds, whole), *_ = questions(model, 1)
    body, choice = write_tensors(feeds), PlanChoice(strategy)
    with tempfile.TemporaryDirectory(prefix="imbrex-liars-") as name:
        folder = Path(name)
        lie = folder / "lie"
        command = (sys.executable, "-m", "benchmarks.chaos.lying", str(lie))
        async with here(folder, WORKERS, max(PACES), model, liar=command) as place:
            liar = place.workers[0]

            async def wrong() -> bool:
                ask = place.client.outputs
                found = await asyncio.to_thread(ask, model, body, names.NPZ, choice)
                return not compare(found.arrays, whole).max_rel_error <= EXACT

            # As long as it is new, it is checked more often: until it was left alone for longer.
            audited, since = 0, _tasks(place, liar)
            while audited < YOUNG_CHECKS or _tasks(place, liar) - since <= LONGEST_YOUNG_TASKS:
                assert not await wrong(), "nobody lies yet"
                if (now := _device(place, liar).audited_tasks) != audited:
                    audited, since = now, _tasks(place, liar)
            before = _tasks(place, liar)
            lie.write_text(kind)
            answers = 0
            if by_doctor:
                await asyncio.to_thread(place.client.doctor)
            else:
                while _state(place, liar) != _QUARANTINED and _tasks(place, liar) - before < 2000:
                    answers += await wrong()
            others = [device for device in place.client.devices() if device.id != liar.id]
            return {
                "kind": kind,
                "strategy": strategy,
                "found": _state(place, liar) == _QUARANTINED,
                "tasks": _tasks(place, liar) - before,
                "wrong_answers": answers,
                "accused_wrongly": sum(other.wrong_tasks for other in others),
            }


def _device(place: Place, worker: WorkerProcess) -> DeviceStatus:
    return next(device for device in place.client.devices() if device.id == worker.id)


def _state(place: Place, worker: WorkerProcess) -> str:
    return _device(place, worker).state


def _tasks(place: Place, worker: WorkerProcess) -> int:
    return _device(place, worker).tasks
