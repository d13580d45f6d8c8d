"""`imbrex check --wire`: the effect of an encoded wire on the answers to many inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np
from PIL import Image
from rich.console import Console

from models.catalogue import LoadedModel
from models.digits import MODEL
from models.digits.evaluate import MIN_SCORE, held_out_sheets, truth_of
from models.effect import Arrays, Blocking, Differences, Effect, Encoded
from models.pixels import as_values
from models.quality import Picture, Truth, mean_average_precision
from models.reference import WholeModel, random_inputs
from models.units import Network
from models.vision.detection import Detection
from models.vision.placement import Placement
from models.vision.predictions import predictions
from models.vision.preprocess import image_to_pixels
from models.vision.sidecar import Sidecar
from models.vision.yolov2 import YoloV2
from models.wire import Wire

PLANNED, EVERYWHERE = "planned_blocks", "every_boundary"
_MEANINGS = {PLANNED: "between planned blocks", EVERYWHERE: "between all units"}


@dataclass(frozen=True, slots=True)
class WireReport:
    """The effect with a planner's cuts, and with maps encoded at every boundary, an upper bound for
    all plans. `map_50` is the mean average precision of each and of the whole model (`exact`), for
    `digits`.
    """

    wire: Wire
    effects: Mapping[str, Effect]
    map_50: Mapping[str, float]

    @property
    def ok(self) -> bool:
        """Whether all values of all answers are finite."""
        return all(isfinite(each.max_rel_error) for each in self.effects.values())

    def as_json(self) -> dict[str, object]:
        """As a dictionary; without `map_50` if the model is not a detector."""
        found: dict[str, object] = {"wire": self.wire}
        found |= {name: each.as_json() for name, each in self.effects.items()}
        return found | ({"map_50": dict(self.map_50)} if self.map_50 else {})


@dataclass(frozen=True, slots=True)
class _Asked:
    """One input in wire form, and the picture that it was made from."""

    feeds: Arrays
    placement: Placement | None = None
    truth: Sequence[Truth] = ()


def wire_effect(
    loaded: LoadedModel,
    network: Network,
    planned: Blocking,
    wire: Wire,
    inputs: int,
    step: Callable[[float], None],
) -> WireReport:
    """Runs `count` inputs through the whole model and through encoded blocks.

    Raises:
        BadRequest: the model cannot use this wire.
    """
    alone = [(unit, unit + 1) for unit in range(len(network.units))]
    wired = network.wired(wire)
    runs = {PLANNED: Encoded(wired, planned), EVERYWHERE: Encoded(wired, alone)}
    whole, differences = WholeModel(loaded.proto), {name: Differences() for name in runs}
    pictures: dict[str, list[Picture]] = {"exact": [], **{name: [] for name in runs}}
    for number, asked in enumerate(_inputs(loaded, network, inputs)):
        step(number / inputs)
        answers = {"exact": whole.run(as_values(network.graph, asked.feeds))}
        for name, run in runs.items():
            answers[name] = run.run(asked.feeds)
            differences[name].add(answers[name], answers["exact"])
        if loaded.sidecar is not None and asked.placement is not None:
            for name, outputs in answers.items():
                found = _detections(loaded.sidecar, outputs, asked.placement)
                pictures[name].append(Picture(found, asked.truth))
    return WireReport(
        wire,
        {name: each.effect() for name, each in differences.items()},
        {
            name: round(mean_average_precision(each)[0], 4)
            for name, each in pictures.items()
            if each
        },
    )


def show(report: WireReport, console: Console) -> None:
    """The report as text."""
    for name, each in report.effects.items():
        told = (
            f"maps as {report.wire} {_MEANINGS[name]}: over {each.inputs} inputs the largest "
            f"difference is {each.max_rel_error:.3g} of the output's largest magnitude (median "
            f"{each.median_rel_error:.3g}), top-1 agreement {each.top1_agreement:.2%}"
        )
        if report.map_50:
            change = report.map_50[name] - report.map_50["exact"]
            told += f", mAP {report.map_50[name]:.4f} ({change:+.4f})"
        console.print(told)
    if not report.ok:
        console.print("DIFFERENT: some values are too large for this wire", style="red")


def _inputs(loaded: LoadedModel, network: Network, count: int) -> Iterator[_Asked]:
    """Held-out sheets for `digits`, seeded noise for others."""
    if loaded.sidecar is None or loaded.name != MODEL.stem:
        for seed in range(count):
            yield _Asked(random_inputs(network.graph, seed))
        return
    form = loaded.sidecar.input
    for made in held_out_sheets(count):
        pixels, placement = image_to_pixels(Image.fromarray(made.pixels), form)
        yield _Asked({form.name: np.asarray(pixels)}, placement, truth_of(made))


def _detections(sidecar: Sidecar, outputs: Arrays, placement: Placement) -> list[Detection]:
    """Includes unlikely detections, for the whole precision-recall curve."""
    assert isinstance(sidecar.head, YoloV2), "digits is a YOLOv2"
    eager = replace(sidecar, head=replace(sidecar.head, min_score=MIN_SCORE))
    found = predictions(eager, dict(outputs), placement)
    return [each for each in found if isinstance(each, Detection)]
