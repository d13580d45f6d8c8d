"""DeepStack's answers, with the fields that CodeProject.AI added.

Clients have undocumented requirements. Frigate's plugin stops at the first confidence below 0.4 and
at the first label that COCO does not have, and fills an array of 20 rows: so detections are sorted,
best first, have COCO's names, and are at most 20. Blue Iris cannot read chunked answers: every
answer has a Content-Length.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from coordinator.answers import Answer
from coordinator.serving.common.errors import Fault
from models.vision.detection import DetectedBox


class _Said(BaseModel):
    """The fields of all answers; `code` repeats the HTTP status."""

    success: bool
    code: int


class DeepStackError(_Said):
    """An error."""

    error: str


class _ByUs(_Said):
    moduleId: str  # noqa: N815 - these clients' names
    moduleName: str  # noqa: N815


class Pong(_ByUs):
    """Whether requests can be answered; if not, why."""

    message: str


class Custom(_ByUs):
    """The available detectors."""

    models: list[str]
    command: str


class DeepStackPrediction(BaseModel):
    """One object, in pixels of the sent picture."""

    confidence: float
    label: str
    x_min: int
    y_min: int
    x_max: int
    y_max: int


class Detected(_ByUs):
    """The objects that were found, best first; `duration` in seconds."""

    message: str = Field(examples=["Found 2 objects"])
    count: int
    predictions: list[DeepStackPrediction]
    duration: float
    processMs: int  # noqa: N815
    inferenceMs: int  # noqa: N815
    analysisRoundTripMs: int  # noqa: N815
    command: str
    requestId: str  # noqa: N815
    inferenceDevice: str  # noqa: N815
    processedBy: str  # noqa: N815
    timestampUTC: str  # noqa: N815


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request is invalid, or not permitted.", "model": DeepStackError},
    "5XX": {
        "description": "Temporarily unavailable, or no detector is configured.",
        "model": DeepStackError,
    },
}
MODULE = {"moduleId": "imbrex", "moduleName": "imbrex"}
MOST_DETECTIONS = 20
# Pascal VOC's names of classes that COCO names differently.
COCO_NAMES = {
    "aeroplane": "airplane",
    "diningtable": "dining table",
    "motorbike": "motorcycle",
    "pottedplant": "potted plant",
    "sofa": "couch",
    "tvmonitor": "tv",
}


def shape(fault: Fault) -> Response:
    """DeepStack's errors: always JSON, which repeats the status."""
    body = {"success": False, "error": fault.message, "code": int(fault.status)}
    return JSONResponse(body, fault.status, fault.headers)


def rows(seen: Sequence[DetectedBox], least: float) -> list[dict[str, Any]]:
    """Detections of at least this confidence, in pixels of the sent picture, best first."""
    return [_row(detection) for detection in seen if detection.score >= least]


def as_coco(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best 20 detections, with COCO's names."""
    return [
        {**row, "label": COCO_NAMES.get(row["label"], row["label"])}
        for row in found[:MOST_DETECTIONS]
    ]


def document(
    found: Sequence[dict[str, Any]], answer: Answer, command: str, taken_s: float
) -> dict[str, Any]:
    """A complete answer; `taken_s` is the time since the request's arrival."""
    count, process_ms = len(found), round(taken_s * 1000)
    return {
        "success": True,
        "message": f"Found {count} object{'' if count == 1 else 's'}",
        "count": count,
        "predictions": list(found),
        "duration": round(taken_s, 3),
        "processMs": process_ms,
        "inferenceMs": round(answer.timing.total_s * 1000),
        "analysisRoundTripMs": process_ms,
        "code": 200,
        "command": command,
        "requestId": answer.request_id,
        "inferenceDevice": f"{len(answer.devices)} devices",
        "processedBy": "imbrex",
        "timestampUTC": format_datetime(datetime.now(UTC), usegmt=True),
        **MODULE,
    }


def _row(detection: DetectedBox) -> dict[str, Any]:
    x_min, y_min, x_max, y_max = (round(edge) for edge in detection.box)
    return {
        "confidence": round(float(detection.score), 6),
        "label": detection.label,
        "x_min": x_min,
        "y_min": y_min,
        "x_max": x_max,
        "y_max": y_max,
    }
