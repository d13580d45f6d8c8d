"""The answers of `/v1`: the server documents them from these models, and the client parses into
them.

No heavy imports here, so that `imbrex status` starts quickly.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from coordinator.answers import DeviceStatus, ModelStatus
from models.vision import Corners

ProfileState = Literal["unmeasured", "waiting", "measuring", "measured", "failed"]


class Error(BaseModel):
    """The cause and cure of an error; `code` is for programs."""

    code: str
    cause: str
    cure: str


class ErrorText(Error):
    """`message` joins cause and cure for people."""

    message: str


class Refusal(BaseModel):
    """An error."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "error": {
                        "code": "not_found",
                        "message": "there is no model 'digit'. Known models: digits, vgg16",
                        "cause": "there is no model 'digit'",
                        "cure": "Known models: digits, vgg16",
                    }
                }
            ]
        }
    )
    error: ErrorText


class Health(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"
    version: str


class Readiness(BaseModel):
    """Requests can be answered."""

    status: Literal["ready"] = "ready"


# ---------------------------------------------------------------- inference


class _Prediction(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Classification(_Prediction):
    """One class and its probability."""

    label: str
    index: int
    score: float


class Mask(BaseModel):
    """A mask of `size` (rows, columns) over the part `box` of the sent image, as run lengths in
    row-major order: pixels that are not set, set, not set, ...
    """

    box: Corners
    size: tuple[int, int]
    counts: list[int]


class Detection(Classification):
    """An object; `box` is x_min, y_min, x_max, y_max in pixels of the sent image. Some models also
    find its mask, keypoints (x, y, likelihood), or the corners (x, y) of a rotated box.
    """

    box: Corners
    mask: Mask | None = None
    keypoints: list[tuple[float, float, float]] | None = None
    corners: list[tuple[float, float]] | None = None


class Segment(_Prediction):
    """The pixels of one class; `share` of the mask is set, `box` bounds the set pixels."""

    label: str
    index: int
    share: float
    box: Corners
    mask: Mask


class Picture(_Prediction):
    """A picture computed by the model, as base64 of a PNG."""

    width: int
    height: int
    png: str


class Tensor(_Prediction):
    """A raw output; `data` in row-major order."""

    name: str
    shape: list[int]
    data: list[Any]


Prediction = Detection | Classification | Segment | Picture | Tensor


class TimingMs(BaseModel):
    """Where the time went; the parts add up to `total`."""

    queue: float
    decode: float
    scatter: float
    compute: float
    gather: float
    total: float


class Moved(BaseModel):
    """Payload bytes: host to devices, devices to host, peer to peer."""

    scatter: int
    gather: int
    halo: int


class Origin(BaseModel):
    """How an answer was computed, and what nobody has confirmed of the model: by part of its
    description, from what it was guessed (left out if there is nothing).
    """

    request_id: str
    model: str
    task: str
    timing_ms: TimingMs
    plan_version: int
    devices: list[str]
    bytes: Moved
    assumed: dict[str, str] = {}


class Inference(Origin):
    """An answer: what the model found, best first."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "request_id": "3f9c2e81a7b4",
                    "model": "digits",
                    "task": "detection",
                    "timing_ms": {
                        "queue": 0.1,
                        "decode": 4.2,
                        "scatter": 3.9,
                        "compute": 41.0,
                        "gather": 1.3,
                        "total": 50.5,
                    },
                    "plan_version": 3,
                    "devices": ["0123456789abcdef", "fedcba9876543210"],
                    "bytes": {"scatter": 519168, "gather": 121680, "halo": 0},
                    "predictions": [
                        {"label": "7", "index": 7, "score": 0.98, "box": [12.5, 40.0, 60.0, 101.0]}
                    ],
                }
            ]
        }
    )
    predictions: list[Prediction]


class Inferences(BaseModel):
    """Answers to several pictures, in order."""

    answers: list[Inference]


# ---------------------------------------------------------------- models and devices


class Models(BaseModel):
    """All models, the bytes of their weights, and the bytes beyond which idle models are
    unloaded.
    """

    models: list[ModelStatus]
    weight_bytes: int
    max_models_bytes: int


class Alone(BaseModel):
    """The best device on the whole model, by its fastest engine with its best number of threads;
    and the seconds that it takes by onnxruntime, null if that was not measured.
    """

    model: str
    device: str
    latency_s: float
    threads: int
    engine: str
    onnxruntime_s: float | None


class DeviceList(BaseModel):
    """All devices."""

    devices: list[DeviceStatus]


class Rates(BaseModel):
    """Seconds of a layer: `fixed_s`, plus seconds per FLOP and per byte read, written and of
    weights.
    """

    fixed_s: float
    flop_s: float
    input_byte_s: float
    output_byte_s: float
    weight_byte_s: float


class LayerFit(BaseModel):
    """The regression of one layer type, with the mean error and the bias of held-out samples."""

    rates: Rates
    samples: int
    mape: float
    bias: float


class EndpointCosts(BaseModel):
    """A machine's seconds per message, per byte of it, and to start a task; for messages between
    devices if these differ; and to set a task up.
    """

    message_s: float
    byte_s: float
    task_s: float
    peer_message_s: float | None
    peer_byte_s: float | None
    set_up_s: float


class EngineFits(BaseModel):
    """What was measured of one engine of a device."""

    fits: dict[str, LayerFit]
    compute_scale: float
    light_scale: float
    blocks: int
    block_mape: float
    block_bias: float


class Profile(EngineFits):
    """What was measured of a device's speed: of its `engine`, and of its `others` by name."""

    fingerprint: dict[str, str]
    engine: str
    others: dict[str, EngineFits]
    endpoint: EndpointCosts | None


class Profiling(BaseModel):
    """The progress of measuring a device, and the result; `profile` is null if there is none."""

    device: str
    name: str
    state: ProfileState
    progress: float
    profile: Profile | None
    error: Error | None

    @property
    def under_way(self) -> bool:
        """Whether it is being measured, or waits for that."""
        return self.state in ("waiting", "measuring")


class ClusterFiles(BaseModel):
    """A cluster file (TOML), and profiles by file name."""

    file: str
    profiles: dict[str, str]


class Released(BaseModel):
    """The model whose plan is no longer held."""

    model: str
    held: Literal[False] = False


class Trace(BaseModel):
    """A timeline in Chrome's trace event format."""

    traceEvents: list[dict[str, Any]]  # noqa: N815 - the format's names
    displayTimeUnit: Literal["ms"]  # noqa: N815
    otherData: dict[str, Any]  # noqa: N815
