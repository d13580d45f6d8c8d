"""`imbrex models quantise`: a network in eight bits, calibrated on pictures and compared with the
float one.
"""

import json
import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from onnx import ModelProto
from rich.progress import Progress, TaskID

from coordinator.library.sharing import open_store
from imbrex import terminal
from imbrex.client import Client
from imbrex.picture_files import SUFFIXES
from models.catalogue import catalogue
from models.catalogue.catalogue import LoadedModel
from models.catalogue.installed import MODEL_FILE, require_name
from models.check.effect import Differences
from models.quantise.labelled import truth_of
from models.quantise.quantise import Quantiser, sensitive
from models.run.reference import WholeModel
from models.tensors.arrays import Arrays
from models.vision.detection import DetectedBox
from models.vision.image_input import ImageInput, Placement
from models.vision.predictions import predictions
from models.vision.preprocess import BadImage, decode_image, image_to_pixels
from models.vision.quality import (
    MIN_SCORE,
    EvaluatedPicture,
    GroundTruth,
    boxes_agree,
    mean_average_precision,
)
from models.vision.sidecar import Sidecar, dump, sidecar_path
from models.vision.yolo_parts import YoloPose, YoloRotated, YoloSegments
from protos.errors import BadRequest, ImbrexError

FILE = "quantised.json"
# More pictures than these change the ranges of a network no further, and take minutes on a Pi.
MOST_PICTURES = 100
# One picture of so many is held out for the comparison.
HELD_OUT = 5
FLOAT, INT8 = "float", "int8"
_LEAST_PICTURES = 2
_SEED = 20_240_601
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Figures:
    """What the quantised network is like on the held-out pictures: the share of boxes that both
    networks have (None if it is not a detector), the share of best classes that are the same, and
    how many times as fast it is here. `in_float` names the layers left in float; `map_50` is the
    mAP of both networks, if the pictures' objects are known.
    """

    model: str
    calibrated_on: int
    compared_on: int
    boxes_agree: float | None
    top1_agreement: float
    speedup: float
    in_float: Sequence[str]
    map_50: Mapping[str, float] | None = None

    def told(self, on_cluster: float | None = None) -> str:
        """As a sentence; `on_cluster` is how many times as fast it is there, if that is known."""
        same = "best classes" if self.boxes_agree is None else "boxes"
        share = self.top1_agreement if self.boxes_agree is None else self.boxes_agree
        there = f", {on_cluster:.1f} on the cluster" if on_cluster else ""
        faster = f"{self.speedup:.1f} times as fast on this device{there}"
        told = f"{faster}; {share:.1%} of {same} agree"
        if self.map_50:
            told += f"; mAP {self.map_50[INT8]:.3f}, in float {self.map_50[FLOAT]:.3f}"
        return told


@dataclass(frozen=True, slots=True)
class _Picture:
    path: Path
    pixels: np.ndarray
    form: ImageInput
    placement: Placement
    truth: Sequence[GroundTruth] | None = None

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        """What the network takes: made anew each time, since it takes four times the room."""
        return {self.form.name: np.asarray(self.form.pixels.values(self.pixels))}


@dataclass(frozen=True)
class _Feeds:
    """What a network takes of these pictures, one after the other."""

    pictures: Sequence[_Picture]

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return (picture.feeds for picture in self.pictures)


def quantise(
    model: str, images: Path, name: str | None, at_most_s: float, url: str, *, as_json: bool
) -> int:
    """Installs the network in eight bits beside the float one, and compares both on the cluster of
    the coordinator at `url`, if that has them.

    Raises:
        BadRequest: the model or the pictures cannot be used.
        BadConfiguration: the models' folder cannot be written.
    """
    loaded = catalogue.load(model)
    if loaded.sidecar is None or loaded.sidecar.task == "tensor":
        raise BadRequest(
            cause=f"{model} does not take pictures",
            cure="Add it with its task: imbrex models add FILE --task detection",
        )
    own = name or re.sub(r"[^A-Za-z0-9._-]", "-", f"{loaded.name}-int8").lstrip("._-")[-64:]
    require_name(own)
    if own in catalogue.names() and open_store().find(own) is None:
        raise BadRequest(
            cause=f"{own!r} is a built-in model", cure="Give it another name with --name"
        )
    with terminal.progress_bar() as bar:
        task = bar.add_task("reading pictures", total=1.0)
        pictures = _pictures(images, loaded.sidecar)
        made, figures = _made(loaded, loaded.sidecar, pictures, at_most_s, (bar, task))
        version = _keep(own, made, loaded.sidecar, figures)
        bar.update(task, description="comparing on the cluster")
        there = _gain_on_cluster(url, loaded.name, own, pictures[0].path)
    if as_json:
        told = {"name": own, "version": version, "speedup_on_cluster": there}
        terminal.print_json(told | asdict(figures))
        return 0
    console = terminal.out()
    console.print(f"added {own}, version {version}: calibrated on {figures.calibrated_on} pictures")
    if figures.in_float:
        console.print(f"left in float: {', '.join(figures.in_float)}")
    console.print(figures.told(there))
    if there is None:
        console.print(f"on the cluster: imbrex bench --models {loaded.name},{own}")
    return 0


def _gain_on_cluster(url: str, model: str, quantised: str, picture: Path) -> float | None:
    """The ratio of both models' latencies, measured in turn; None if no coordinator there answers
    for both.
    """
    try:
        with Client(url) as client:
            for name in (model, quantised):  # plans, and sends the weights
                client.infer(name, picture)
            seconds = [
                [client.infer(name, picture).timing_ms.total for name in (model, quantised)]
                for _ in range(_ROUNDS)
            ]
    except ImbrexError:
        return None
    whole, made = (statistics.median(taken) for taken in zip(*seconds, strict=True))
    return round(float(whole / made), 2)


def _pictures(folder: Path, sidecar: Sidecar) -> list[_Picture]:
    """The pictures of a folder as the model takes them, in random order."""
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    except OSError as error:
        raise BadRequest(
            cause=f"the folder {folder} cannot be read: {error.strerror}",
            cure="Name a folder of pictures like those that the model will see",
        ) from error
    order = np.random.default_rng(_SEED).permutation(len(files))
    found: list[_Picture] = []
    problem = ""
    for number in order:
        if len(found) == MOST_PICTURES:
            break
        try:
            image = decode_image(files[number].read_bytes())
        except (BadImage, OSError) as error:
            problem = f" ({files[number].name}: {error})"
            continue
        pixels, placement = image_to_pixels(image, sidecar.picture)
        parts = isinstance(sidecar.head, YoloSegments | YoloPose | YoloRotated)
        detects = sidecar.task == "detection" and not parts
        truth = truth_of(files[number], image.size, sidecar.labels) if detects else None
        found.append(_Picture(files[number], pixels, sidecar.picture, placement, truth))
    if len(found) < _LEAST_PICTURES:
        raise BadRequest(
            cause=f"{folder} has {len(found)} pictures that can be used{problem}",
            cure=f"Put at least {_LEAST_PICTURES} there, ideally {MOST_PICTURES}, like those "
            "that the model will see: some calibrate it, the others serve for the comparison",
        )
    return found


def _made(
    loaded: LoadedModel,
    sidecar: Sidecar,
    pictures: Sequence[_Picture],
    at_most_s: float,
    progress: tuple[Progress, TaskID],
) -> tuple[ModelProto, Figures]:
    bar, task = progress
    held = max(1, len(pictures) // HELD_OUT)
    calibrating = _Feeds(pictures[held:])
    bar.update(task, description="calibrating")
    whole = WholeModel(loaded.proto, threads=0)
    with TemporaryDirectory(prefix="imbrex-quantise-") as folder:
        quantiser = Quantiser(loaded.proto, calibrating, Path(folder))
        bar.update(task, description="finding sensitive layers")
        in_float = sensitive(
            quantiser,
            whole,
            calibrating,
            at_most_s,
            lambda share: bar.update(task, completed=share),
        )
        made = quantiser.made(in_float)
    bar.update(task, description="comparing")
    quantised, compared = WholeModel(made, threads=0), pictures[:held]
    same, top1, speedup = _compared(sidecar, whole, quantised, compared)
    figures = Figures(loaded.name, len(pictures) - held, held, same, top1, speedup, tuple(in_float))
    if any(picture.truth for picture in compared):
        models = {FLOAT: whole, INT8: quantised}
        quality = {name: _map_50(sidecar, model, compared) for name, model in models.items()}
        figures = replace(figures, map_50=quality)
    return made, figures


def _compared(
    sidecar: Sidecar, whole: WholeModel, quantised: WholeModel, pictures: Sequence[_Picture]
) -> tuple[float | None, float, float]:
    """Agreement of boxes and of best classes, and the ratio of times, measured in turn."""
    differences, boxes = Differences(), []
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(max(_ROUNDS, len(pictures))):
        picture = pictures[number % len(pictures)]
        answers = []
        for model, taken in zip((whole, quantised), seconds, strict=True):
            began_s = time.perf_counter()
            answers.append(model.run(picture.feeds))
            taken.append(time.perf_counter() - began_s)
        if number < len(pictures):
            differences.add(answers[1], answers[0])
            first, second = (_detections(sidecar, answer, picture) for answer in answers)
            boxes.append((first, second))
    same = boxes_agree(boxes) if sidecar.task == "detection" else None
    speedup = statistics.median(seconds[0]) / statistics.median(seconds[1])
    return same, differences.effect().top1_agreement, speedup


def _map_50(sidecar: Sidecar, model: WholeModel, pictures: Sequence[_Picture]) -> float:
    """The mAP at an IoU of 0.5. A picture without a file of its own shows nothing."""
    assert sidecar.head is not None, "it detects"
    # Every head that detects has a `min_score`.
    head = replace(sidecar.head, min_score=MIN_SCORE)  # type: ignore[arg-type]
    eager = replace(sidecar, head=head)
    seen = [
        EvaluatedPicture(_detections(eager, model.run(picture.feeds), picture), picture.truth or ())
        for picture in pictures
    ]
    return round(mean_average_precision(seen)[0], 4)


def _detections(sidecar: Sidecar, outputs: Arrays, picture: _Picture) -> list[DetectedBox]:
    found = predictions(sidecar, dict(outputs), picture.placement)
    return [prediction for prediction in found if isinstance(prediction, DetectedBox)]


def _keep(name: str, made: ModelProto, sidecar: Sidecar, figures: Figures) -> int:
    described = replace(
        sidecar, name=name, description=f"{sidecar.description} In eight bits: {figures.told()}."
    )

    def write(folder: Path) -> None:
        (folder / MODEL_FILE).write_bytes(made.SerializeToString())
        sidecar_path(folder / MODEL_FILE).write_text(dump(described), encoding="utf-8")
        (folder / FILE).write_text(json.dumps(asdict(figures), indent=1) + "\n", encoding="utf-8")

    return open_store().put(name, write)
