"""The JSON of the HTTP interface, made from the coordinator's plain values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from coordinator.answers import Answer, Baseline, DeviceStatus, ModelStatus, ServedModel
from coordinator.library.naming import Names
from models.vision.predictions import Prediction


def answer_json(served: ServedModel, answer: Answer, decode_s: float) -> dict[str, Any]:
    """How an answer came about: everything but the predictions.

    `decode_s` is the time from the bytes of the body to the model's input; the request was not
    yet the cluster's then, so it is part of the total here and not of `answer.timing`.
    """
    timing = answer.timing
    return {
        "request_id": answer.request_id,
        "model": served.name,
        "task": task_of(served),
        "timing_ms": {
            "queue": _ms(timing.queue_s),
            "decode": _ms(decode_s),
            "scatter": _ms(timing.scatter_s),
            "compute": _ms(timing.compute_s),
            "gather": _ms(timing.gather_s),
            "total": _ms(timing.total_s + decode_s),
        },
        "plan_version": answer.plan_version,
        "devices": list(answer.devices),
        "bytes": answer.traffic.as_json(),
    }


def predictions_json(predictions: Sequence[Prediction]) -> list[dict[str, object]]:
    """The contract's `predictions`."""
    return [each.as_json() for each in predictions]


def task_of(served: ServedModel) -> str:
    """The model's task; one without a sidecar takes and gives tensors."""
    return served.sidecar.task if served.sidecar else "tensor"


def devices_json(devices: Sequence[DeviceStatus]) -> dict[str, Any]:
    """Every device that this coordinator knows of."""
    return {"devices": [device_json(device) for device in devices]}


def device_json(device: DeviceStatus) -> dict[str, Any]:
    """One device."""
    return _plain(asdict(device))


def models_json(models: Sequence[ModelStatus], names: Names) -> dict[str, Any]:
    """Every model that this coordinator serves."""
    rows = []
    for model in models:
        name, version = names.public(model.name)
        rows.append({**asdict(model), "name": name, "version": version})
    return {"models": rows}


def baseline_json(served: ServedModel, baseline: Baseline) -> dict[str, Any]:
    """The best device running the whole model."""
    return {"model": served.name, **asdict(baseline)}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no infinity: what is not known yet is null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in fields.items()
    }
