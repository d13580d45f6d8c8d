"""`imbrex infer`: one file to a coordinator, and its answer."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from coordinator import terminal
from coordinator.choice import IN_FORCE, Choice
from coordinator.client import CoordinatorClient
from coordinator.serving import names
from models.classification import Classification
from models.detection import Detection
from models.predictions import Prediction
from models.repainting import Repainting
from models.segmentation import Segment, mask_of
from protos.errors import BadConfiguration, BadRequest, NotFound


@dataclass(frozen=True, slots=True)
class Wish:
    """How the user wants it planned: a choice, or a plan's file."""

    choice: Choice = IN_FORCE
    plan: Path | None = None

    def on(self, client: CoordinatorClient, model: str) -> Choice:
        """The choice, after the file was sent."""
        return client.send_plan(model, read_file(self.plan)) if self.plan else self.choice


def infer(file: Path, model: str, url: str, wish: Wish, *, save: Path | None, as_json: bool) -> int:
    """Sends a picture (or tensors as .npz) and prints the answer."""
    body = read_file(file)
    with CoordinatorClient(url) as client, terminal.waiting(f"{file.name} through {model}"):
        answer = client.infer(model, body, media_type(file), wish.on(client, model))
    if save is not None:
        save_annotated(body, answer["predictions"], save)
    if as_json:
        terminal.print_json(answer)
        return 0
    console = terminal.out()
    if answer["predictions"]:
        console.print(terminal.predictions_table(answer["predictions"]))
    else:
        console.print("nothing found")
    console.print(phases(answer))
    if save is not None:
        console.print(f"annotated picture: {save}")
    return 0


def read_file(file: Path) -> bytes:
    """The bytes of a file that the user named.

    Raises:
        NotFound: there is none.
        BadRequest: it cannot be read.
    """
    try:
        return file.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(cause=f"there is no file {file}", cure="Check its path") from error
    except OSError as error:
        raise BadRequest(
            cause=f"{file} cannot be read ({error.strerror})", cure="Check its permissions"
        ) from error


def media_type(file: Path) -> str:
    """How a file's bytes are announced; the coordinator looks at the bytes themselves."""
    if file.suffix.lower() == ".npz":
        return names.NPZ
    guessed, _ = mimetypes.guess_type(file.name)
    return guessed if guessed and guessed.startswith("image/") else names.OCTETS


def save_annotated(body: bytes, predictions: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Draws an answer over its picture and writes it.

    Raises:
        BadRequest: the answer isn't about a picture.
        BadConfiguration: the file cannot be written.
    """
    from PIL import Image

    from models.drawing import annotated
    from models.preprocess import decode_image

    if any("data" in each for each in predictions):
        raise BadRequest(
            cause="this model gives tensors: there is nothing to draw",
            cure="Leave --save out, or use a model that finds or names things",
        )
    picture = annotated(decode_image(body), [prediction(each) for each in predictions])
    kind = Image.registered_extensions().get(target.suffix.lower(), "PNG")
    file = BytesIO()
    picture.save(file, kind)
    try:
        target.write_bytes(file.getvalue())
    except OSError as error:
        raise BadConfiguration(
            cause=f"{target} cannot be written ({error.strerror})",
            cure="Give --save a path in a folder that you may write to",
        ) from error


def phases(answer: Mapping[str, Any]) -> str:
    """Where an answer's time went, in one line."""
    timing = dict(answer["timing_ms"])
    total = timing.pop("total")
    parts = ", ".join(f"{phase} {each:.1f}" for phase, each in timing.items())
    count = len(answer["devices"])
    devices = "1 device" if count == 1 else f"{count} devices"
    return f"{total:.1f} ms on {devices} ({parts}); plan {answer['plan_version']}"


def prediction(fields: Mapping[str, Any]) -> Prediction:
    """The prediction behind its JSON."""
    if "png" in fields:
        from PIL import Image

        return Repainting(Image.open(BytesIO(base64.b64decode(fields["png"]))).convert("RGB"))
    label, index = str(fields["label"]), int(fields["index"])
    if "mask" in fields:
        mask = fields["mask"]
        rows, columns = mask["size"]
        pixels = mask_of(mask["counts"], (rows, columns))
        box, covers = _corners(fields["box"]), _corners(mask["box"])
        return Segment(label, index, float(fields["share"]), box, covers, pixels)
    if "box" in fields:
        return Detection(label, index, float(fields["score"]), _corners(fields["box"]))
    return Classification(label, index, float(fields["score"]))


def _corners(edges: Sequence[float]) -> tuple[float, float, float, float]:
    x_min, y_min, x_max, y_max = (float(edge) for edge in edges)
    return x_min, y_min, x_max, y_max
