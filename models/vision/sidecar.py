"""The sidecar: what an ONNX file does not say about its model, in `NAME.json` beside `NAME.onnx`.

It names the task, the labels, how an image becomes the model's input, and how the model's output
becomes predictions. Reading is strict: an unknown, missing or wrong key is an error that names it.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ModelWrapValidatorHandler, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from models.tensors.precision import Precision, Wire
from models.tensors.selection import NO_SELECTION, Selections
from models.vision.head import OutputShapes, VisionTask
from models.vision.heads import HEADS, Head
from models.vision.image_input import ImageInput
from protos.daemon.documents import DOCUMENT, MOST_ITEMS, Flag, Problem, String, Text, read, wrong
from protos.daemon.files import read_text
from protos.errors import BadRequest

# What may be guessed of a model.
Assumable = Literal["task", "labels", "pixels", "anchors"]
# Tasks without classes.
LABELLESS: frozenset[VisionTask] = frozenset({"tensor", "image-to-image"})


class SidecarError(BadRequest):
    """The sidecar at `path` cannot be used; `problem` names the key and what is wrong with it."""

    code: ClassVar[str] = "bad_sidecar"

    def __init__(self, path: Path, problem: str, cure: str) -> None:
        super().__init__(cause=f"{path}: {problem}", cure=cure)
        self.path = path
        self.problem = problem


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class Sidecar:
    """Everything about a model besides its graph and weights. `precision` is what its answers
    promise. `wire` is the permitted encoding of maps between devices, if that is not the
    precision's. Only a tensor model may lack an `input`: it takes no pictures then. `assumed` says
    what nobody has confirmed of it, and from what it was guessed.
    """

    name: Text
    task: VisionTask
    description: Text
    licence: Text
    source: Text
    trained: Flag
    labels: Annotated[tuple[String, ...], Field(max_length=MOST_ITEMS)]
    input: ImageInput | None = Field(default=None, validate_default=True)
    head: Annotated[Head, Field(discriminator="type")] | None = Field(
        default=None, validate_default=True
    )
    wire: Wire = "exact"
    precision: Precision = "exact"
    assumed: dict[Assumable, Text] = Field(default_factory=dict)

    @property
    def picture(self) -> ImageInput:
        """How a picture becomes its input.

        Raises:
            BadRequest: it takes tensors alone.
        """
        if self.input is None:
            raise BadRequest(
                cause=f"{self.name} takes tensors, not pictures",
                cure="Send its input tensors as .npz, or add it again with an input of pictures",
            )
        return self.input

    @property
    def allowed_wire(self) -> Wire:
        """The permitted encoding of maps between devices."""
        return self.precision if self.wire == "exact" else self.wire

    def selections(self, shapes: OutputShapes) -> Selections:
        """What its head reads of outputs of these shapes, where that is not everything."""
        return NO_SELECTION if self.head is None else self.head.selections(shapes, len(self.labels))

    @field_validator("labels")
    @classmethod
    def _one_for_each_class(cls, given: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        task = info.data.get("task", "tensor")
        if task not in LABELLESS and not given:
            raise wrong(f"A {task} model needs one label per class", "is empty")
        return given

    @field_validator("input")
    @classmethod
    def _of_pictures(cls, given: ImageInput | None, info: ValidationInfo) -> ImageInput | None:
        task = info.data.get("task", "tensor")
        if given is None and task != "tensor":
            raise wrong(f"Write an object: a {task} model takes pictures", "is missing")
        return given

    @field_validator("head", mode="wrap")
    @classmethod
    def _of_the_task(
        cls, given: Any, handler: ModelWrapValidatorHandler[Head | None], info: ValidationInfo
    ) -> Head | None:
        task = info.data.get("task")
        if task == "tensor":
            if given is not None:
                cure = "Remove it: a tensor model's output is returned as it is"
                raise wrong(cure, "is not allowed here")
            return None
        known = [name for name, head in HEADS.items() if head.task == task]
        if given is None:
            raise wrong(f"Write an object with a type, one of {_listed(known)}")
        if isinstance(given, dict) and given.get("type") not in known:
            raise wrong(f"Write one of {_listed(known)}", key="type")
        return handler(given)


def sidecar_path(model: Path) -> Path:
    """The path of the sidecar of the model file `model`."""
    return model.with_suffix(".json")


def load(path: Path) -> Sidecar:
    """The sidecar in the file `path`.

    Raises:
        SidecarError: it is missing, not JSON, or a key is missing, unknown or wrong.
    """
    try:
        text = read_text(path)
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
        return read_sidecar(document)
    except Problem as problem:
        raise SidecarError(path, problem.what, problem.cure) from problem


def read_sidecar(document: Any) -> Sidecar:
    """The sidecar in a JSON value.

    Raises:
        Problem: a key is missing, unknown or wrong.
    """
    head = document.get("head") if isinstance(document, dict) else None
    type_ = head.get("type") if isinstance(head, dict) else None
    inner: dict[str, type] = {"input": ImageInput}
    if isinstance(type_, str) and type_ in HEADS:
        inner["head"] = HEADS[type_]
    return read(Sidecar, document, "sidecar", inner)


def dump(sidecar: Sidecar) -> str:
    """The JSON text that `parse` reads back to an equal value; keys that came later are left out
    where they say what is usual, so that earlier versions read it, too.
    """
    document = asdict(sidecar)
    if not sidecar.assumed:
        del document["assumed"]
    if sidecar.input is not None and sidecar.input.layout == "NCHW":
        del document["input"]["layout"]
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
