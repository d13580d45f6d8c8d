"""Pictures as answers: style, resolution, colour."""

import base64
from dataclasses import dataclass as plain
from dataclasses import field
from io import BytesIO
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from models.tensors.arrays import require_finite
from models.vision.head import (
    ANY,
    OutputReader,
    OutputShapes,
    OutputValues,
    PictureSize,
    View,
    VisionTask,
)
from protos.daemon.documents import DOCUMENT, Number, Positive

if TYPE_CHECKING:  # imported late: a worker lists models, too, and has no Pillow
    from PIL import Image


@plain(frozen=True, slots=True)
class Repainting:
    """The new picture, RGB, of the part that the model saw of the sent one."""

    picture: "Image.Image" = field(compare=False)

    def as_json(self) -> dict[str, object]:
        """The prediction as the HTTP interface shows it: a PNG in base64."""
        file = BytesIO()
        self.picture.save(file, "PNG", compress_level=1)
        png = base64.b64encode(file.getvalue()).decode()
        return {"width": self.picture.width, "height": self.picture.height, "png": png}


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class Repainted(OutputReader):
    """An output (1, 3 or 1, H, W): another picture, pixel = value * scale + offset, RGB or grey."""

    type: Literal["pixels"]
    scale: Positive
    offset: Number
    task: ClassVar[VisionTask] = "image-to-image"

    def wanted(self, shapes: OutputShapes, classes: int, size: PictureSize) -> OutputShapes:
        """The picture."""
        name = next(iter(shapes))
        return {name: (1, 1 if shapes[name][1:2] == (1,) else 3, ANY, ANY)}

    def read(self, outputs: OutputValues, view: View) -> list[Repainting]:
        """The picture."""
        from PIL import Image

        output = next(iter(outputs.values()))
        rows, columns, _ = view.placement.on_map(output.shape[2], output.shape[3], view.size)
        values = output[0][:, rows, columns] * self.scale + self.offset
        require_finite(values, "the pixels of its picture")
        pixels = np.clip(np.rint(values), 0, 255).astype(np.uint8)
        if len(pixels) == 1:
            pixels = np.repeat(pixels, 3, axis=0)
        return [Repainting(Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))))]
