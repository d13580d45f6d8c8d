"""The sidecar: what a model file cannot say about itself, in `NAME.json` beside `NAME.onnx`.

It names the task, the labels, how an image becomes the model's input, and how the model's output
becomes predictions. Reading is strict: an unknown, missing or wrong key is an error that names it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from models.heads import LARGEST_SIDE, TASKS, Head, Task, read_head
from models.strict import Fields, Problem
from models.wire import WIRES, Pixels, Wire
from protos.errors import BadRequest

Resize = Literal["letterbox", "stretch", "centre-crop"]

RESIZES: tuple[Resize, ...] = ("letterbox", "stretch", "centre-crop")
# Tasks whose outputs are not of classes.
LABELLESS: frozenset[Task] = frozenset({"tensor", "image-to-image"})


class SidecarError(BadRequest):
    """The sidecar at `path` cannot be used; `problem` names the key and what is wrong with it."""

    code: ClassVar[str] = "bad_sidecar"

    def __init__(self, path: Path, problem: str, cure: str) -> None:
        super().__init__(cause=f"{path}: {problem}", cure=cure)
        self.path = path
        self.problem = problem


@dataclass(frozen=True, slots=True)
class ImageInput:
    """How a picture becomes the input `name` (1, 3, *size) float32: (pixel * scale - mean) / std.

    `size` is (height, width). A letterbox is padded with the grey `pad_value`; a centre crop
    first brings the shorter side to `resize_shorter` pixels.
    """

    name: str
    size: tuple[int, int]
    resize: Resize
    resize_shorter: int | None
    color: Literal["RGB", "BGR"]
    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    pad_value: int

    @property
    def pixels(self) -> Pixels:
        """The input as the pixels that it is made of."""
        return Pixels(self.scale, self.mean, self.std)


@dataclass(frozen=True, slots=True)
class Sidecar:
    """Everything about a model besides its graph and weights. `wire` is what its maps may travel
    as between devices.
    """

    name: str
    task: Task
    description: str
    licence: str
    source: str
    trained: bool
    labels: tuple[str, ...]
    input: ImageInput
    head: Head | None
    wire: Wire = "exact"


def sidecar_path(model: Path) -> Path:
    """Where the sidecar of the model file `model` lies."""
    return model.with_suffix(".json")


def load(path: Path) -> Sidecar:
    """The sidecar in the file `path`.

    Raises:
        SidecarError: it is missing, not JSON, or a key is missing, unknown or wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cure = "Put a readable UTF-8 JSON file beside the model"
        raise SidecarError(path, f"cannot be read ({error})", cure) from error
    return parse(text, path)


def parse(text: str, path: Path) -> Sidecar:
    """The sidecar in `text`; `path` only names it in errors.

    Raises:
        SidecarError: see `load`.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SidecarError(path, f"is not JSON ({error})", "Correct the file") from error
    try:
        return read_sidecar(Fields.of(document, "sidecar"))
    except Problem as problem:
        raise SidecarError(path, problem.what, problem.cure) from problem


def dump(sidecar: Sidecar) -> str:
    """The JSON text that `parse` reads back to an equal value."""
    return json.dumps(asdict(sidecar), indent=1, ensure_ascii=False) + "\n"


def read_sidecar(fields: Fields, labels: tuple[str, ...] | None = None) -> Sidecar:
    """The sidecar in an object; its labels are a list there, unless they are given.

    Raises:
        Problem: a key is missing, unknown or wrong.
    """
    task = fields.choice("task", TASKS)
    sidecar = Sidecar(
        name=fields.text("name"),
        task=task,
        description=fields.text("description"),
        licence=fields.text("licence"),
        source=fields.text("source"),
        trained=fields.flag("trained"),
        labels=fields.texts("labels") if labels is None else labels,
        input=_image_input(fields.inner("input")),
        head=read_head(fields, task),
        wire=fields.choice("wire", WIRES, otherwise="exact"),
    )
    if task not in LABELLESS and not sidecar.labels:
        raise fields.problem("labels", "is empty", f"A {task} model needs one label per class")
    fields.end()
    return sidecar


def _image_input(fields: Fields) -> ImageInput:
    resize = fields.choice("resize", RESIZES)
    height, width = fields.integers("size", 2, 1, LARGEST_SIDE)
    read = ImageInput(
        name=fields.text("name"),
        size=(height, width),
        resize=resize,
        resize_shorter=_resize_shorter(fields, resize, max(height, width)),
        color=fields.choice("color", ("RGB", "BGR")),
        scale=fields.number("scale", above=0.0),
        mean=fields.three("mean"),
        std=fields.three("std", above=0.0),
        pad_value=fields.integer("pad_value", 0, 255),
    )
    fields.end()
    return read


def _resize_shorter(fields: Fields, resize: Resize, longest: int) -> int | None:
    """Only a centre crop has one, and it is never smaller than what is cut out of it."""
    if resize == "centre-crop":
        return fields.integer("resize_shorter", longest, LARGEST_SIDE)
    fields.absent("resize_shorter", f"only centre-crop reads it, and resize is {resize!r}")
    return None


def as_document(sidecar: Sidecar) -> dict[str, Any]:
    """The sidecar as plain JSON values."""
    document: dict[str, Any] = json.loads(dump(sidecar))
    return document
