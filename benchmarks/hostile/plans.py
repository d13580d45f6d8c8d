"""A network that is large for the devices (H1, H13)."""

from __future__ import annotations

import re
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped, unused-ignore]

from benchmarks.hostile.attacks import Happened, Target, attack, comes_true
from coordinator.serving.common.names import NPZ
from coordinator.serving.common.tensors import write_tensors
from models.catalogue.catalogue import load
from models.onnx_file.importer import load_graph
from models.run.reference import random_inputs

MODEL = "vgg16"
PLANS = 6
PLAN_S = 60.0
# Its 32-bit weights, and what plans may take besides.
WEIGHTS_BYTES = 553_430_000
BESIDES_BYTES = 150_000_000
# For a second, while the weights of a network without a file are made up.
LOADING_BYTES = 3 * WEIGHTS_BYTES + BESIDES_BYTES
_MEGABYTES = re.compile(r"(\d+(?:\.\d+)?) MB")


def _question() -> bytes:
    return write_tensors(random_inputs(load_graph(load(MODEL).proto)))


def _asked(client: httpx.Client, body: bytes) -> httpx.Response:
    headers = {"Content-Type": NPZ, "Accept": NPZ}
    return client.post(f"/v1/models/{MODEL}/infer", content=body, headers=headers)


def _version(client: httpx.Client) -> int:
    rows: list[dict[str, Any]] = client.get("/v1/models").json()["models"]
    return int(next((row["plan_version"] for row in rows if row["name"] == MODEL), 0))


@attack(
    "H1",
    "after each plan the weights once and 150 MB besides; every plan answers",
    place="large",
    patient_s=60.0,
    most_grown_bytes=LOADING_BYTES,
)
def plans_that_change(target: Target) -> Happened:
    """No attacker: devices come and go, and each time vgg16 is divided another way."""
    body, answered, versions, held = _question(), [], [0], []
    coordinator = psutil.Process(target.pid)
    idle = coordinator.memory_info().rss
    with httpx.Client(base_url=target.url, timeout=PLAN_S) as client:
        client.post(f"/v2/repository/models/{MODEL}/load").raise_for_status()
        devices = [device["id"] for device in client.get("/v1/devices").json()["devices"]]
        orders = [f"{devices[n // 2]}/{'resume' if n % 2 else 'drain'}" for n in range(PLANS)]
        for order in (None, *orders):
            if order is not None:
                client.post(f"/v1/devices/{order}").raise_for_status()
                comes_true(lambda: _version(client) > versions[-1], PLAN_S)
            answered.append(_asked(client, body).status_code)
            versions.append(_version(client))
            held.append(coordinator.memory_info().rss - idle)
        client.post(f"/v2/repository/models/{MODEL}/unload").raise_for_status()
    changed = len(set(versions)) == PLANS + 2
    bounded = max(held) <= WEIGHTS_BYTES + BESIDES_BYTES
    told = f"plans {versions[1:]}; answered {sorted(set(answered))}; held above idle after each: "
    told += f"{', '.join(str(size_bytes // 1_000_000) for size_bytes in held)} MB"
    return Happened(changed and bounded and set(answered) == {200}, told)


@attack(
    "H13",
    "one message with what is needed and what the devices have; or it is answered",
    place="small",
    patient_s=60.0,
    most_grown_bytes=LOADING_BYTES,
)
def devices_that_are_too_small(target: Target) -> Happened:
    """vgg16 on three devices that may use 400 MB each."""
    with httpx.Client(base_url=target.url, timeout=PLAN_S) as client:
        answers = [_asked(client, body) for body in 2 * (_question(),)]
    codes = [answer.status_code for answer in answers]
    if codes == [200, 200]:
        return Happened(True, "answered")
    causes = {str(answer.json().get("error", answer.json()).get("cause", "")) for answer in answers}
    cause = causes.pop()
    sizes = [float(number) for number in _MEGABYTES.findall(cause)]
    # What it needs comes first; then what the largest device has, and all of them together.
    consistent = "largest device" in cause and len(sizes) == 3 and sizes[0] > max(sizes[1:])
    ok = not causes and consistent and all(400 <= code < 600 for code in codes)
    return Happened(ok, f"{codes} {cause}", {"mb": sizes[0] if sizes else 0.0})
