"""The coordinator's memory while the plan of a large model changes again and again.

Devices are taken out and given back in turn, so that every plan divides the weights another way;
each plan answers a request before the next one is made.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped, unused-ignore]

from benchmarks.soak.question import Question, wrong
from benchmarks.soak.service import COORDINATOR, service, wait_until, wait_until_ready

WORKERS = 3
PLANS = 20
# Above an idle coordinator and the weights themselves, which are mapped from a file.
MOST_BYTES = 150_000_000
# Of the coordinator's own over the last ten plans: the median of the last five, above that of the
# five before. The process that computes tasks again comes and goes.
MOST_GROWTH_BYTES = 10_000_000
PLAN_S = 300.0
TIMEOUT_S = 300.0


async def measure(question: Question, pace: float) -> dict[str, Any]:
    """Everything that is printed."""
    with tempfile.TemporaryDirectory(prefix="imbrex-soak-") as name:
        async with (
            service(Path(name), WORKERS, pace) as (url, pids),
            httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False) as http,
        ):
            watched = psutil.Process(pids[COORDINATOR])
            await wait_until_ready(http)
            await wait_until(lambda: _all_there(http))
            devices = await _devices(http)
            await wait_until(partial(_is_alone, watched))
            idle_bytes = _resident(watched)
            samples: list[int] = []
            own: list[int] = []
            versions: list[int] = []
            lost = 0
            for number in range(PLANS + 1):
                if number:
                    device = devices[(number - 1) // 2 % WORKERS]
                    order = "drain" if number % 2 else "resume"
                    (await http.post(f"/v1/devices/{device}/{order}")).raise_for_status()
                    replanned = partial(_replanned, http, question.model, versions[-1])
                    await wait_until(replanned, PLAN_S)
                answer = await http.post(
                    f"/v1/models/{question.model}/infer",
                    content=question.body,
                    headers=question.headers,
                )
                lost += not answer.is_success or wrong(question, answer)
                model = await _model(http, question.model)
                versions.append(model["plan_version"])
                samples.append(_resident(watched))
                own.append(int(watched.memory_full_info().uss))
            peak_bytes = _peak(watched)
    weights = model["weight_bytes"]
    return {
        "model": question.model,
        "workers": WORKERS,
        "pace": pace,
        "weight_bytes": weights,
        "idle_bytes": idle_bytes,
        "samples": samples,
        "own_samples": own,
        "plan_versions": versions,
        "lost_or_wrong": lost,
        "above_idle_and_weights_bytes": max(samples) - idle_bytes - weights,
        "asked_bytes": MOST_BYTES,
        "peak_bytes": peak_bytes,
        "growth_of_the_last_ten_bytes": int(median(own[-5:]) - median(own[-10:-5])),
    }


def is_bad(result: dict[str, Any]) -> bool:
    """Whether more was held than asked, memory grows, or an answer was lost or wrong."""
    return bool(
        result["lost_or_wrong"]
        or result["above_idle_and_weights_bytes"] > MOST_BYTES
        or result["growth_of_the_last_ten_bytes"] > MOST_GROWTH_BYTES
    )


def lines(result: dict[str, Any]) -> list[str]:
    """The same for people."""
    megabytes = [f"{size_bytes / 1e6:.1f}" for size_bytes in result["samples"]]
    return [
        f"idle {result['idle_bytes'] / 1e6:.1f} MB, weights {result['weight_bytes'] / 1e6:.1f} MB",
        f"resident after each plan: {' '.join(megabytes)} MB",
        f"while the model was read at most {result['peak_bytes'] / 1e6:.1f} MB",
        f"at most {result['above_idle_and_weights_bytes'] / 1e6:+.1f} MB above both (asked "
        f"{MOST_BYTES / 1e6:.0f}), {result['growth_of_the_last_ten_bytes'] / 1e6:+.1f} MB over the "
        f"last ten plans; {result['lost_or_wrong']} answers lost or wrong",
    ]


def _resident(process: psutil.Process) -> int:
    """Of the process and those that it started, what several of them map counted once."""
    family = [process, *process.children(recursive=True)]
    return sum(int(member.memory_full_info().pss) for member in family)


async def _is_alone(process: psutil.Process) -> bool:
    """Whether nothing that it started is at work."""
    return not process.children()


def _peak(process: psutil.Process) -> int:
    """The most that was resident at once since it started: a model is read before it is mapped."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


async def _devices(http: httpx.AsyncClient) -> list[str]:
    found = (await http.get("/v1/devices")).json()["devices"]
    return [device["id"] for device in found if device["state"] == "ready"]


async def _model(http: httpx.AsyncClient, name: str) -> dict[str, Any]:
    found = (await http.get("/v1/models")).json()["models"]
    return next(dict(model) for model in found if model["name"] == name)


async def _all_there(http: httpx.AsyncClient) -> bool:
    return len(await _devices(http)) == WORKERS


async def _replanned(http: httpx.AsyncClient, name: str, before: int) -> bool:
    return bool((await _model(http, name))["plan_version"] > before)
