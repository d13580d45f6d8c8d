"""The messages of Frigate's `zmq` detector, as multipart frames.

At start: {"model_request": true, "model_name": NAME} is answered by {"model_available": ...,
"model_loaded": ...}; {"model_data": true, "model_name": NAME} and the file's bytes by
{"model_saved": ..., "model_loaded": ...}. Then, for each picture: {"shape": [...], "dtype": ...,
"model_type": ...} and the tensor's bytes in C order, answered by {"shape": [20, 6], "dtype":
"float32"} and 480 bytes. A detection that cannot be answered gets rows of zeros, which is what
Frigate itself assumes after a timeout.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protos.daemon.documents import first_problem
from protos.errors import BadRequest

ROWS, COLUMNS = 20, 6
# A header is a line; Frigate's have a hundred bytes.
LARGEST_HEADER_BYTES = 4096
# Names of files become names of models, in URLs and metrics.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,58}\.onnx")

ModelType = Literal["ssd", "yolox", "yolonas", "yologeneric", "rfdetr", "dfine"]


@dataclass(frozen=True, slots=True)
class ModelWanted:
    """Frigate asks whether this model is here and loaded."""

    name: str


@dataclass(frozen=True, slots=True)
class ModelSent:
    """Frigate sends the model."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True, eq=False)
class DetectionRequest:
    """A tensor to detect objects in, in the layout and type of Frigate's configuration."""

    tensor: np.ndarray
    model_type: ModelType


DetectorMessage: TypeAlias = ModelWanted | ModelSent | DetectionRequest


class _Header(BaseModel):
    """The first frame; what Frigate adds later is ignored."""

    model_config = ConfigDict(extra="ignore")

    model_request: bool = False
    model_data: bool = False
    model_name: Annotated[str, Field(max_length=256)] = ""
    shape: Annotated[list[Annotated[int, Field(ge=1, le=1 << 16)]], Field(max_length=8)] = []
    dtype: Literal["uint8", "float32"] = "float32"
    model_type: ModelType = "yologeneric"


def read(frames: Sequence[bytes]) -> DetectorMessage:
    """The message of these frames.

    Raises:
        BadRequest: they are none; the first thing that is wrong is named.
    """
    if not 1 <= len(frames) <= 2 or len(frames[0]) > LARGEST_HEADER_BYTES:
        raise _bad(f"{len(frames)} frames, the first of {len(frames[0]) if frames else 0} bytes")
    try:
        header = _Header.model_validate_json(frames[0])
    except ValidationError as error:
        raise _bad(first_problem(error, "header")) from None
    if header.model_request or header.model_data:
        if not _NAME.fullmatch(header.model_name):
            raise _bad(f"a model called {header.model_name!r}, instead of NAME.onnx")
        if header.model_request:
            return ModelWanted(header.model_name)
        return ModelSent(header.model_name, _second(frames))
    data, dtype = _second(frames), np.dtype(header.dtype)
    if not header.shape or len(data) != math.prod(header.shape) * dtype.itemsize:
        raise _bad(f"{len(data)} bytes for a tensor of shape {header.shape} and {dtype}")
    return DetectionRequest(np.frombuffer(data, dtype).reshape(header.shape), header.model_type)


def availability(*, available: bool, loaded: bool) -> list[bytes]:
    """The answer to `ModelWanted`."""
    return [_json({"model_available": available, "model_loaded": loaded})]


def receipt(*, saved: bool, loaded: bool) -> list[bytes]:
    """The answer to `ModelSent`."""
    return [_json({"model_saved": saved, "model_loaded": loaded})]


def detections(rows: np.ndarray) -> list[bytes]:
    """The answer to `DetectionRequest`: (n, 6) rows, of which the first 20 are sent."""
    padded = np.zeros((ROWS, COLUMNS), np.float32)
    padded[: len(rows)] = rows[:ROWS]
    return [_json({"shape": [ROWS, COLUMNS], "dtype": "float32"}), padded.tobytes()]


def _second(frames: Sequence[bytes]) -> bytes:
    if len(frames) != 2:
        raise _bad("a header without its data")
    return frames[1]


def _json(value: dict[str, object]) -> bytes:
    return json.dumps(value).encode()


def _bad(what: str) -> BadRequest:
    return BadRequest(
        cause=f"this is not a message of Frigate's zmq detector: {what}",
        cure="Let only Frigate connect to this address.",
    )


NOTHING = detections(np.zeros((0, COLUMNS), np.float32))
