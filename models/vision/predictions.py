"""From a model's outputs to predictions, as its sidecar says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from models.vision.classes import ClassProbability, ClassSegment
from models.vision.detection import DetectedBox
from models.vision.head import ANY, OutputValues, Values, View
from models.vision.image_input import Placement
from models.vision.repainted import Repainting
from models.vision.sidecar import Sidecar
from protos.errors import BadRequest


@dataclass(frozen=True, slots=True)
class RawOutput:
    """An output of a model that has no head: its values as they are."""

    name: str
    values: Values

    def as_json(self) -> dict[str, object]:
        """Name, shape and the flat row-major values."""
        return {
            "name": self.name,
            "shape": list(self.values.shape),
            "data": self.values.ravel().tolist(),
        }


VisionPrediction = ClassProbability | DetectedBox | ClassSegment | Repainting | RawOutput


class OutputMismatch(BadRequest):
    """A model's output does not have the shape that its sidecar promises."""

    code: ClassVar[str] = "bad_sidecar"

    def __init__(self, *, model: str, problem: str, cure: str) -> None:
        super().__init__(
            cause=f"The sidecar of {model} does not fit its model: {problem}", cure=cure
        )
        self.model = model
        self.problem = problem


def predictions(
    sidecar: Sidecar, outputs: OutputValues, placement: Placement
) -> list[VisionPrediction]:
    """The predictions, best first; boxes are in pixels of the sent image.

    Raises:
        OutputMismatch: the outputs are not of the shape that the sidecar's head needs.
        NotFiniteAnswer: what the head reads has NaN, or infinities that mean nothing.
    """
    check_outputs(sidecar, {name: output.shape for name, output in outputs.items()})
    return predictions_of_checked(sidecar, outputs, placement)


def predictions_of_checked(
    sidecar: Sidecar, outputs: OutputValues, placement: Placement
) -> list[VisionPrediction]:
    """The same of a model whose outputs were checked when it was loaded.

    Raises:
        NotFiniteAnswer: as `predictions`.
    """
    if sidecar.head is None:
        return [RawOutput(name, output) for name, output in outputs.items()]
    values = {name: output.astype(np.float32, copy=False) for name, output in outputs.items()}
    view = View(sidecar.labels, sidecar.picture.size, placement)
    with np.errstate(all="ignore"):  # heads refuse what becomes NaN
        return [*sidecar.head.read(values, view)]


def check_outputs(sidecar: Sidecar, shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse a model whose outputs (name -> shape) do not fit the sidecar; once, at loading.

    Raises:
        OutputMismatch: see `predictions`.
    """
    if sidecar.head is None:
        return
    known = {name: tuple(shape) for name, shape in shapes.items()} or {"?": ()}
    wanted = sidecar.head.wanted(known, len(sidecar.labels), sidecar.picture.size)
    for name in wanted.keys() - shapes.keys():
        raise _unfit(sidecar, f"the head reads an output {name!r}, which the model does not have")
    if len(wanted) != len(shapes):
        raise _unfit(
            sidecar, f"the head reads {len(wanted)} outputs, but the model has {len(shapes)}"
        )
    for name, shape in shapes.items():
        sizes = wanted[name]
        fits = all(want in (size, ANY) for size, want in zip(shape, sizes, strict=False))
        if len(shape) != len(sizes) or not fits:
            told = tuple("any" if size == ANY else size for size in sizes)
            raise _unfit(
                sidecar, f"output {name!r} has shape {tuple(shape)}, where its head reads {told}"
            )


def _unfit(sidecar: Sidecar, problem: str) -> OutputMismatch:
    cure = "Correct labels, head and input size in the sidecar, or make its task tensor"
    return OutputMismatch(model=sidecar.name, problem=problem, cure=cure)
