"""`imbrex check`: cuts a model here, runs all tiles, compares with the whole model."""

from rich.console import Console
from rich.text import Text

from imbrex import terminal
from imbrex.cli.effect import Loss, loss_report, show
from imbrex.library import checked, planned_blocks
from models.catalogue import catalogue
from models.catalogue.loading import network_of
from models.check.check import FAULT, CheckReport
from models.check.tolerance import told


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
