"""The commands that plan, predict and check. Nothing but typer is imported here: `--help` stays
fast.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from imbrex.cli import ranges
from imbrex.cli.options import (
    URL,
    ChosenStrategy,
    DeviceCounts,
    DevicesOption,
    Json,
    ModelArgument,
    PlanFileOption,
    PrecisionOption,
    Url,
    WireOption,
    known_wire,
    model_names,
)

_T = TypeVar("_T")
CLUSTER = "A cluster file, or a report of `imbrex bench --report`."


def add_planning(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(plan)
    app.command()(simulate)
    app.command()(bench)
    app.command()(check)


def plan(  # noqa: PLR0913, PLR0917 - typer reads the flags from the parameters
    model: ModelArgument,
    cluster: Annotated[Path | None, typer.Option(metavar="FILE.toml", help=CLUSTER)] = None,
    strategy: ChosenStrategy = None,
    devices: DevicesOption = None,
    wire: WireOption = None,
    url: Url = URL,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Explain the choice, and what the alternatives would cost."),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="List each task of a device separately.")
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Save the plan as OUT.json, or draw it as OUT.svg."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the plan for a cluster file, or that of a running coordinator.

    A saved plan can be executed as it is: `imbrex infer --plan`, `bench --plan`, `demo --plan`.

    \b
    imbrex plan digits
    imbrex plan vgg16 --cluster eight-pis.toml --strategy aofl --explain
    imbrex plan yolov2 --cluster eight-pis.toml --save plan.svg
    """
    if save is not None and save.suffix.lower() not in (".json", ".svg"):
        raise typer.BadParameter(f"{save} is neither .json nor .svg", param_hint="--save")
    allowed = known_wire(wire)
    from coordinator.answers import PlanChoice
    from imbrex.cli import plan as command

    source = command.PlanSource(cluster, url, PlanChoice.of(strategy, devices, allowed))
    raise typer.Exit(
        command.plan(model, source, explain=explain, verbose=verbose, save=save, as_json=as_json)
    )


def simulate(
    model: ModelArgument,
    cluster: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help=f"{CLUSTER} [required]")
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(metavar="S,S", help="Strategies, separated by commas; also module:function."),
    ] = "all",
    devices: DeviceCounts = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="OUT.svg", help="Draw the speed-up over 1..N devices.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict every strategy on a cluster file, side by side.

    Write the file by hand (docs/cluster-files.md), or save that of a running cluster: `imbrex
    status --save`.

    \b
    imbrex simulate vgg16 --cluster eight-pis.toml
    imbrex simulate yolov2 --cluster eight-pis.toml --strategy aofl,elimination --devices 1..8
    imbrex simulate digits --cluster eight-pis.toml --plot speedup.svg --json
    """
    if cluster is None:
        raise typer.BadParameter(
            "name a cluster file, such as docs/clusters/four-pi4.toml; `imbrex status --save` "
            "writes that of a running cluster",
            param_hint="--cluster",
        )
    strategies = _parsed(ranges.listed, strategy, "--strategy")
    counts = _parsed(ranges.counts, devices, "--devices") if devices is not None else None
    _require_svg(plot)
    from imbrex.cli import simulate as command

    raise typer.Exit(command.simulate(model, cluster, strategies, counts, plot, as_json=as_json))


def bench(  # noqa: PLR0913, PLR0917 - typer reads the flags from the parameters
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A model's name (see `imbrex models list`) or an .onnx file. "
            "[default with --report: digits and resnet50]",
            autocompletion=model_names,
        ),
    ] = None,
    url: Url = URL,
    strategies: Annotated[
        str | None,
        typer.Option(
            metavar="S,S",
            help="Strategies of the coordinator, separated by commas. "
            "[default: auto; with --report: halo,auto]",
        ),
    ] = None,
    devices: DeviceCounts = None,
    repeat: Annotated[int, typer.Option(min=1, max=10_000, help="The number of rounds.")] = 10,
    plan: PlanFileOption = None,
    wire: Annotated[
        str | None,
        typer.Option(
            metavar="W,W",
            help="Formats in which feature maps may travel (exact, fp16, int8); each strategy is "
            "measured with each of them. "
            "[default: what the model allows]",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the random input.")] = 0,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print every sample as CSV.")] = False,
    models: Annotated[
        str | None,
        typer.Option(metavar="M,M", help="Several models, one after the other; instead of MODEL."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.svg", help="Draw the measured and predicted speed-up over --devices."
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.json",
            help="Write a report of the whole cluster to send in: the speed of its devices, links "
            "and messages, and how much faster they are together; no names, addresses or ids.",
        ),
    ] = None,
) -> None:
    """Measure strategies on a running cluster, and compare with the predictions.

    Every answer is compared with the first strategy's. Rounds are interleaved (a b a b), so that a
    slowdown of the cluster affects all equally; each ends with the baseline, the whole model on the
    best device alone. With --report, devices that were not measured before are measured first;
    `imbrex simulate --cluster` reads a report.

    \b
    imbrex bench --report report.json
    imbrex bench digits --strategies aofl,elimination --devices 1..4 --repeat 20 --plot speedup.svg
    imbrex bench --models resnet50,yolov8n --csv
    imbrex bench vgg16 --url http://pi-1:8460 --strategies all --json
    imbrex bench digits --strategies aofl --plan plan.json --csv
    imbrex bench yolov2 --wire exact,fp16 --devices 4
    """
    if as_json + as_csv + (report is not None) > 1:
        raise typer.BadParameter("choose one of --json, --csv and --report")
    if model is not None and models is not None:
        raise typer.BadParameter("give MODEL or --models, not both", param_hint="--models")
    _require_svg(plot)
    wanted = _parsed(ranges.listed, models, "--models") if models else [model] if model else []
    names = _parsed(ranges.listed, strategies, "--strategies") if strategies is not None else []
    counts = _parsed(ranges.counts, devices, "--devices") if devices is not None else None
    wires = [known_wire(name) for name in _parsed(ranges.listed, wire, "--wire")] if wire else [""]
    from imbrex.cli import bench as command
    from imbrex.cli.measuring import MeasureOptions

    if report is not None:
        from imbrex.cli import report as reporting

        if plot is not None:
            raise typer.BadParameter("a report has no plot", param_hint="--plot")
        asked = MeasureOptions(names or reporting.STRATEGIES, counts, repeat, seed, plan, wires)
        raise typer.Exit(reporting.report(wanted or reporting.MODELS, url, asked, report))
    if not wanted:
        raise typer.BadParameter("name one, or ask for a --report", param_hint="MODEL")
    asked = MeasureOptions(names or ["auto"], counts, repeat, seed, plan, wires, plot)
    form: command.OutputFormat = "json" if as_json else "csv" if as_csv else "people"
    raise typer.Exit(command.bench(wanted, url, asked, form))


def check(
    model: ModelArgument,
    grid: Annotated[
        str, typer.Option(metavar="RxC", help="Rows and columns of tiles.", show_default=True)
    ] = "2x2",
    precision: PrecisionOption = None,
    wire: WireOption = None,
    inputs: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="The number of inputs on which to measure the effect of --precision or --wire.",
        ),
    ] = 100,
    as_json: Json = False,
) -> None:
    """Run a model cut into tiles on this machine, and compare with the whole model.

    \b
    imbrex check digits --grid 1x5
    imbrex check my-model.onnx --grid 2x4 --json
    imbrex check digits --precision fp16     (what that does to the answer)
    imbrex check digits --wire int8          (what that does, if only maps are encoded)
    """
    if precision and wire:
        raise typer.BadParameter("a precision has its own wire", param_hint="--precision")
    chosen = precision or known_wire(wire)
    rows, separator, cols = grid.partition("x")
    if not (separator and rows.isdecimal() and cols.isdecimal() and int(rows) and int(cols)):
        raise typer.BadParameter(
            f"{grid!r} is not of the form ROWSxCOLUMNS, for example 2x4", param_hint="--grid"
        )
    from coordinator.answers import PlanChoice
    from imbrex.cli import check as command

    loss = command.Loss(PlanChoice.of(None, None, chosen).wire or "exact", in_half=bool(precision))
    tiles = (int(rows), int(cols))
    raise typer.Exit(command.check(model, tiles, loss, inputs, as_json=as_json))


def _require_svg(plot: Path | None) -> None:
    if plot is not None and plot.suffix.lower() != ".svg":
        raise typer.BadParameter(f"{plot} is not an .svg file", param_hint="--plot")


def _parsed(parse: Callable[[str], _T], text: str, option: str) -> _T:
    """The parsed value of an option; exits with wrong usage if it is invalid."""
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
