"""DeepStack's answers, with the fields that CodeProject.AI added.

Clients are strict without saying so. Frigate's plugin stops at the first confidence below 0.4 and
at the first label that COCO does not have, and writes into an array of 20 rows: detections come
best first, under COCO's names, and never more than 20. Blue Iris reads nothing from a chunked
answer: every one has its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from coordinator.answers import Answer
from coordinator.serving.common.errors import Fault
from models.vision.detection import Detection


class _Said(BaseModel):
    """What every answer says, `code` being the HTTP status again."""

    success: bool
    code: int


class Refusal(_Said):
    """Every answer that is an error."""

    error: str


class _ByUs(_Said):
    moduleId: str  # noqa: N815 - these clients' names
    moduleName: str  # noqa: N815


class Pong(_ByUs):
    """Whether requests can be answered; why not."""

    message: str


class Custom(_ByUs):
    """The detectors that can be asked."""

    models: list[str]
    command: str


class Seen(BaseModel):
    """Something found, in pixels of the sent picture."""

    confidence: float
    label: str
    x_min: int
    y_min: int
    x_max: int
    y_max: int


class Detected(_ByUs):
    """What was found, best first; `duration` in seconds."""

    message: str = Field(examples=["Found 2 objects"])
    count: int
    predictions: list[Seen]
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
    "4XX": {"description": "The request is invalid, or not permitted.", "model": Refusal},
    "5XX": {
        "description": "Temporarily unavailable, or no detector is configured.",
        "model": Refusal,
    },
}
MODULE = {"moduleId": "imbrex", "moduleName": "imbrex"}
MOST_DETECTIONS = 20
# Pascal VOC's names of what COCO has too.
COCO_NAMES = {
    "aeroplane": "airplane",
    "diningtable": "dining table",
    "motorbike": "motorcycle",
    "pottedplant": "potted plant",
    "sofa": "couch",
    "tvmonitor": "tv",
}


def shape(fault: Fault) -> Response:
    """DeepStack's errors: JSON whatever happens, with the status inside too."""
    body = {"success": False, "error": fault.message, "code": int(fault.status)}
    return JSONResponse(body, fault.status, fault.headers)


def rows(seen: Sequence[Detection], least: float) -> list[dict[str, Any]]:
    """Detections of at least this confidence in pixels of the sent picture, best first."""
    return [_row(each) for each in seen if each.score >= least]


def as_coco(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best 20, under COCO's names."""
    return [
        {**row, "label": COCO_NAMES.get(row["label"], row["label"])}
        for row in found[:MOST_DETECTIONS]
    ]


def document(
    found: Sequence[dict[str, Any]], answer: Answer, command: str, taken_s: float
) -> dict[str, Any]:
    """A whole answer; `taken_s` from the request's arrival."""
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


def _row(each: Detection) -> dict[str, Any]:
    x_min, y_min, x_max, y_max = (round(edge) for edge in each.box)
    return {
        "confidence": round(float(each.score), 6),
        "label": each.label,
        "x_min": x_min,
        "y_min": y_min,
        "x_max": x_max,
        "y_max": y_max,
    }
