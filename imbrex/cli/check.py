"""`imbrex check`: cuts a model here, runs all tiles, compares with the whole model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np
from PIL import Image
from rich.console import Console
from rich.text import Text

from imbrex import terminal
from imbrex.library import checked, planned_blocks
from models.catalogue import catalogue
from models.catalogue.catalogue import LoadedModel
from models.catalogue.loading import network_of
from models.check.check import FAULT, Blocking, CheckReport
from models.check.effect import Differences, Effect, Encoded
from models.check.tolerance import told
from models.cut.units import Network
from models.digits import MODEL
from models.digits.examples import examples
from models.run.reference import WholeModel, random_inputs
from models.tensors.arrays import Arrays
from models.tensors.precision import Wire
from models.vision.anchored_grids import YoloV2
from models.vision.detection import DetectedBox
from models.vision.image_input import Placement
from models.vision.pixels import as_values
from models.vision.predictions import predictions
from models.vision.preprocess import decode_image, image_to_pixels
from models.vision.quality import MIN_SCORE, EvaluatedPicture, GroundTruth, mean_average_precision
from models.vision.sidecar import Sidecar

PLANNED, EVERYWHERE = "planned_blocks", "every_boundary"
# How much further each round of the example sheets moves what is on them.
_MARGIN_PX = 3
_MEANINGS = {PLANNED: "between planned blocks", EVERYWHERE: "between all units"}


@dataclass(frozen=True, slots=True)
class Loss:
    """What costs exactness: maps that travel in this encoding, and blocks that are computed in half
    precision.
    """

    wire: Wire = "exact"
    in_half: bool = False

    @property
    def option(self) -> str:
        """The option that asks for it."""
        return "precision" if self.in_half else "wire"


@dataclass(frozen=True, slots=True)
class LossReport:
    """The effect with a planner's cuts, and with maps encoded at every boundary, an upper bound for
    all plans. `map_50` is the mean average precision of each and of the whole model (`exact`), for
    `digits`.
    """

    loss: Loss
    effects: Mapping[str, Effect]
    map_50: Mapping[str, float]

    @property
    def ok(self) -> bool:
        """Whether all values of all answers are finite."""
        return all(isfinite(effect.max_rel_error) for effect in self.effects.values())

    def as_json(self) -> dict[str, object]:
        """As a dictionary; without `map_50` if the model is not a detector."""
        found: dict[str, object] = {self.loss.option: self.loss.wire}
        found |= {name: effect.as_json() for name, effect in self.effects.items()}
        found |= {"map_50": dict(self.map_50)} if self.map_50 else {}
        return {self.loss.option: found}


@dataclass(frozen=True, slots=True)
class _Asked:
    """One input in wire form, and the picture that it was made from."""

    feeds: Arrays
    placement: Placement | None = None
    truth: Sequence[GroundTruth] = ()


def loss_report(
    loaded: LoadedModel,
    network: Network,
    planned: Blocking,
    loss: Loss,
    inputs: int,
    step: Callable[[float], None],
) -> LossReport:
    """Runs so many inputs through the whole model and through blocks with this loss.

    Raises:
        BadRequest: the model cannot use this wire.
    """
    alone = [(unit, unit + 1) for unit in range(len(network.units))]
    wired = network.wired(loss.wire)
    runs = {
        PLANNED: Encoded(wired, planned, in_half=loss.in_half),
        EVERYWHERE: Encoded(wired, alone, in_half=loss.in_half),
    }
    whole = WholeModel(loaded.proto, threads=0)
    differences = {name: Differences() for name in runs}
    pictures: dict[str, list[EvaluatedPicture]] = {"exact": [], **{name: [] for name in runs}}
    for number, asked in enumerate(_inputs(loaded, network, inputs)):
        step(number / inputs)
        answers = {"exact": whole.run(as_values(network.graph, asked.feeds))}
        for name, run in runs.items():
            answers[name] = run.run(asked.feeds)
            differences[name].add(answers[name], answers["exact"])
        if loaded.sidecar is not None and asked.placement is not None:
            for name, outputs in answers.items():
                found = _detections(loaded.sidecar, outputs, asked.placement)
                pictures[name].append(EvaluatedPicture(found, asked.truth))
    return LossReport(
        loss,
        {name: difference.effect() for name, difference in differences.items()},
        {
            name: round(mean_average_precision(evaluated)[0], 4)
            for name, evaluated in pictures.items()
            if evaluated
        },
    )


def show(report: LossReport, console: Console) -> None:
    """The report as text."""
    computed = ", blocks computed in half precision" if report.loss.in_half else ""
    for name, effect in report.effects.items():
        told = (
            f"maps as {report.loss.wire} {_MEANINGS[name]}{computed}: over {effect.inputs} inputs "
            f"the largest difference is {effect.max_rel_error:.3g} of the output's largest "
            f"magnitude (median {effect.median_rel_error:.3g}), "
            f"top-1 agreement {effect.top1_agreement:.2%}"
        )
        if report.map_50:
            change = report.map_50[name] - report.map_50["exact"]
            told += f", mAP {report.map_50[name]:.4f} ({change:+.4f})"
        console.print(told)
    if not report.ok:
        console.print(
            f"DIFFERENT: some values are too large for this {report.loss.option}", style="red"
        )


def _inputs(loaded: LoadedModel, network: Network, count: int) -> Iterator[_Asked]:
    """Its example sheets for `digits`, each time with wider margins; seeded noise for others."""
    if loaded.sidecar is None or loaded.name != MODEL.stem:
        for seed in range(count):
            yield _Asked(random_inputs(network.graph, seed))
        return
    form = loaded.sidecar.picture
    sheets = [(np.asarray(decode_image(e.path.read_bytes())), e.truth) for e in examples()]
    for number in range(count):
        around, number_there = divmod(number, len(sheets))
        sheet, truth = sheets[number_there]
        margin = around * _MARGIN_PX
        wider = np.pad(sheet, ((margin, 0), (margin, 0), (0, 0)), mode="edge")
        moved = [
            GroundTruth(entry.label, (x + margin, y + margin, x_max + margin, y_max + margin))
            for entry in truth
            for x, y, x_max, y_max in (entry.box,)
        ]
        pixels, placement = image_to_pixels(Image.fromarray(wider), form)
        yield _Asked({form.name: np.asarray(pixels)}, placement, moved)


def _detections(sidecar: Sidecar, outputs: Arrays, placement: Placement) -> list[DetectedBox]:
    """Includes unlikely detections, for the whole precision-recall curve."""
    assert isinstance(sidecar.head, YoloV2), "digits is a YOLOv2"
    eager = replace(sidecar, head=replace(sidecar.head, min_score=MIN_SCORE))
    found = predictions(eager, dict(outputs), placement)
    return [prediction for prediction in found if isinstance(prediction, DetectedBox)]


def check(
    model: str, grid: tuple[int, int], loss: Loss, inputs: int = 100, *, as_json: bool
) -> int:
    """Checks a model with a grid of tiles, and the effect of a loss on `inputs` inputs; returns the
    exit code, 1 if it is not ok.
    """
    loaded = catalogue.load(model)
    network = network_of(loaded)
    with terminal.progress_bar() as bar:
        task = bar.add_task("", total=1.0)
        report = checked(
            loaded,
            network,
            grid,
            lambda what, share: bar.update(task, description=what, completed=share),
        )
        effect = None
        if loss.wire != "exact":
            bar.update(task, description=f"{loss.option} {loss.wire}", completed=0)
            effect = loss_report(
                loaded,
                network,
                planned_blocks(network, grid[0] * grid[1]),
                loss,
                inputs,
                lambda share: bar.update(task, completed=share),
            )
    if as_json:
        terminal.print_json(report.as_json() | (effect.as_json() if effect else {}))
    else:
        _show(report, terminal.out())
        if effect:
            show(effect, terminal.out())
    return 0 if report.ok and (effect is None or effect.ok) else 1


def _show(report: CheckReport, console: Console) -> None:
    rows, cols = report.grid
    comparison = report.comparison
    console.print(
        f"{report.model}, every block in {rows} x {cols} tiles, cut in three ways: every unit "
        f"alone, {report.blocks} planned blocks, everything that splits in one block"
    )
    console.print(f"{report.partitioned_flop_share:.1%} of the FLOPs run split")
    for refusal in report.refusals:
        console.print(f"whole: {refusal.layer}: {refusal.reason}")
    verdict = {"ok": "ok", "different": "DIFFERENT", "cannot judge": "cannot judge"}[report.verdict]
    if report.verdict == "different" and report.judgement.worst:
        verdict += f" (most in {report.judgement.worst})"
    limit = told(report.tolerance)
    if report.noise > report.tolerance:
        limit += f"; onnxruntime differs from itself by {report.noise:.3g}"
    if report.inside:
        limit += (
            f"; compared in {report.inside} maps inside the network, as its outputs hide faults"
        )
    if report.verdict == "cannot judge":
        limit += (
            f"; a fault of {FAULT:g} times as much in one tile would not be seen in the outputs"
        )
    colour = {"ok": "green", "different": "red", "cannot judge": "yellow"}[report.verdict]
    console.print(Text(f"{verdict}: {comparison} ({limit})", colour))
