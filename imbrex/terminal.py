"""Terminal output: tables and sentences on standard output, progress on standard error.

Rich omits colours if the output is a pipe or NO_COLOR is set.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from protos.wire.limits import Limits

# Rich is imported by what prints: the flags of commands, whose modules import this one, need
# nothing of it.
if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

# A pipe has no width; tables must not be folded for programs that read them.
PIPE_WIDTH = 160


def out() -> "Console":
    """Results."""
    return _console(sys.stdout.isatty(), stderr=False)


def err() -> "Console":
    """The console for progress, logs and errors."""
    return _console(sys.stderr.isatty(), stderr=True)


def print_json(value: Mapping[str, Any]) -> None:
    """Prints the one JSON object of a command's standard output. JSON has no infinity: what is not
    finite is null.
    """
    sys.stdout.write(json.dumps(_finite(value), allow_nan=False) + "\n")
    sys.stdout.flush()


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {key: _finite(part) for key, part in value.items()}
        case list() | tuple():
            return [_finite(part) for part in value]
        case _:
            return value


def tell(document: Mapping[str, Any], told: "RenderableType", *, as_json: bool) -> None:
    """Prints a command's result: the JSON object, or what people read in its place."""
    if as_json:
        print_json(document)
    else:
        out().print(told)


def tell_alone(document: Mapping[str, Any], text: str, note: str, *, as_json: bool) -> None:
    """The same with a text that is alone on standard output; what else there is to say of it, the
    `note`, is no part of that.
    """
    if as_json:
        print_json(document)
    else:
        print(text, end="")
        err().print(note)


@contextmanager
def progress_bar(*, of_bytes: bool = False) -> Iterator["Progress"]:
    """A bar on a terminal, nothing elsewhere."""
    from rich import progress

    console = err()
    transfer = (progress.DownloadColumn(), progress.TransferSpeedColumn())
    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        *(transfer if of_bytes else (progress.TimeElapsedColumn(),)),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        yield bar


@contextmanager
def transfer_bar(what: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
    """A bar of bytes; call it with the bytes so far."""
    with progress_bar(of_bytes=True) as progress:
        task = progress.add_task(what, total=size_bytes)
        yield lambda there: progress.update(task, completed=there)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner on a terminal while something takes time; nothing elsewhere."""
    console = err()
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


def heading(text: str) -> "Text":
    """Prints the title of a section of a report."""
    from rich.text import Text

    return Text(text, style="bold")


def table(*columns: str) -> "Table":
    """Prints a light table; a column whose name begins with > is right-aligned."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        if column.startswith(">"):
            made.add_column(column[1:], justify="right", no_wrap=True)
        else:
            made.add_column(column)
    return made


def predictions_table(predictions: Sequence[Mapping[str, Any]]) -> "Table":
    """Prints detections, classes, segments, tensors or a picture."""
    if predictions and "png" in predictions[0]:
        made = table("picture", "pixels")
        for prediction in predictions:
            made.add_row("new", f"{prediction['width']}x{prediction['height']}")
        return made
    if predictions and "data" in predictions[0]:
        made = table("output", "shape", ">smallest", ">largest")
        for prediction in predictions:
            data = prediction["data"] or [0]
            shape = "x".join(map(str, prediction["shape"]))
            made.add_row(prediction["name"], shape, f"{min(data):g}", f"{max(data):g}")
        return made
    boxes = any("box" in prediction for prediction in predictions)
    number = "share" if any("share" in prediction for prediction in predictions) else "score"
    made = table("label", f">{number}", *(("box (x, y to x, y)",) if boxes else ()))
    for prediction in predictions:
        row = [str(prediction["label"]), f"{prediction[number]:.2f}"]
        if boxes:
            x_min, y_min, x_max, y_max = prediction["box"]
            row.append(f"{x_min:.0f}, {y_min:.0f} to {x_max:.0f}, {y_max:.0f}")
        made.add_row(*row)
    return made


def devices_table(devices: Sequence[Mapping[str, Any]]) -> "Table":
    """The devices of a coordinator."""
    from rich.text import Text

    made = table(
        *("device", "address", "state", ">pace", ">cores", ">GFLOP/s", "engine", ">Mbit/s"),
        *("found by", "note"),
    )
    made.columns[0].no_wrap = True
    for device in devices:
        concurrency = device.get("concurrency", 1)
        at_once = f", {concurrency} tasks" if concurrency > 1 else ""
        made.add_row(
            device["name"] + (" (host)" if device["host"] else ""),
            device["address"],
            Text(device["state"], style="green" if device["state"] == "ready" else "yellow"),
            f"{device['pace']:.2f}",
            f"{device['cores']}{at_once}",
            number(device["gflops"]),
            engine_of(device.get("facts", {})),
            number(device["mbps"]),
            device["source"],
            device["reason"],
        )
    return made


def engine_of(facts: Mapping[str, Any]) -> str:
    """The engines of a device with the programs that each computes, and how many times as fast as
    onnxruntime; what onnxruntime computes itself beside another one.
    """
    name, speedup = str(facts.get("engine", "")), facts.get("speedup", 0.0)
    shares = [
        f"{share['name']} {share['programs']} ({share['speedup']:.2f}x)"
        for share in facts.get("engines", ())
    ]
    kept = sum(kept["programs"] for kept in facts.get("kept", ()))
    told = f"{name} ({speedup:.2f}x)" if speedup else name
    if shares:
        told = ", ".join([*shares, *([f"onnxruntime {kept}"] if kept else [])])
    limits = facts.get("limits")
    return f"{told}, {Limits(**limits)}" if limits else told


def models_table(models: Sequence[Mapping[str, Any]]) -> "Table":
    """The models that a coordinator serves."""
    from rich.text import Text

    made = table("model", "task", "weights", ">MB", "state", ">plan")
    for model in models:
        made.add_row(
            model["name"],
            model["task"],
            "trained" if model["trained"] else "untrained",
            f"{model['weight_bytes'] / 1e6:.1f}" if model["weight_bytes"] else "-",
            Text(model["state"], style="green" if model["ready"] else "yellow"),
            str(model["plan_version"]) if model["plan_version"] else "-",
        )
    return made


def plan_table(
    plan: Mapping[str, Any], device_names: Mapping[str, str], *, verbose: bool = False
) -> "Table":
    """A plan's blocks: layers, exchange, and each device's part; its tiles that adjoin are one line
    unless it is to be `verbose`. `plan` is the documented JSON.
    """
    made = table(">block", "layers", "exchange", ">GFLOP", "tiles")
    for index, block in enumerate(plan["blocks"], start=1):
        tiles = block["tiles"]
        flop = sum(tile["flop"] for tile in tiles)
        axes = [axis for axis in ("cols", "channels") if any(tile[axis][0] for tile in tiles)]
        counted = [(tile, 1) for tile in tiles] if verbose or axes else _adjoining(tiles)
        parts = (
            f"{device_names.get(tile['device'], tile['device'])} {_part(tile, axes)}"
            f"{f' in {count} tasks' if count > 1 else ''}"
            for tile, count in counted
        )
        exchange = block["exchange"] + (", barrier" if block["barrier"] else "")
        made.add_row(
            str(index), _layers(block["layers"]), exchange, f"{flop / 1e9:.2f}", "\n".join(parts)
        )
    return made


def _adjoining(tiles: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], int]]:
    """Tiles of one device whose rows adjoin as one, and how many these are."""
    found: list[tuple[Mapping[str, Any], int]] = []
    for tile in sorted(tiles, key=lambda tile: tile["rows"]):
        if found:
            last, count = found[-1]
            adjoin = last["device"] == tile["device"] and last["rows"][1] == tile["rows"][0]
            if adjoin:
                found[-1] = ({**last, "rows": [last["rows"][0], tile["rows"][1]]}, count + 1)
                continue
        found.append((tile, 1))
    return found


def plan_sentence(plan: Mapping[str, Any], scale: float = 1.0) -> str:
    """A summary of a plan, in one line; its times are multiplied by `scale`."""
    count, together = len(plan["devices_used"]), scale * plan["predicted_latency_s"]
    alone = scale * plan["single_device_latency_s"]
    devices = "1 device" if count == 1 else f"{count} devices"
    blocks = "1 block" if len(plan["blocks"]) == 1 else f"{len(plan['blocks'])} blocks"
    wire = plan.get("wire", "exact")
    told = "" if wire == "exact" else f", maps sent as {wire}"
    extra = plan["redundant_flop"] / plan["total_flop"] if plan["total_flop"] else 0.0
    return (
        f"{plan['strategy']}: {blocks} on {devices}, predicted "
        f"{duration(together)} (best device alone {duration(alone)}), "
        f"{extra:.0%} of the FLOPs computed more than once"
        f"{told}"
    )


def bar(share: float, width: int) -> str:
    """A bar of at most `width` characters, to eighths of one."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    rest = " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return "█" * (eighths // 8) + rest


def duration(seconds: float) -> str:
    """A duration with a suitable unit."""
    if seconds >= 10:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"


def size(count: float) -> str:
    """A number of bytes."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= limit:
            return f"{count / limit:.2f} {unit}"
    return f"{count:.0f} B"


def ms(seconds: float) -> str:
    """A cell of a column of milliseconds."""
    return f"{seconds * 1e3:.1f}"


def mb(count: float) -> str:
    """A cell of a column of megabytes."""
    return f"{count / 1e6:.2f}"


def number(value: float | None) -> str:
    """A rate, or a dash if it is not known."""
    return f"{value:.1f}" if value else "-"


def _part(tile: Mapping[str, Any], axes: Sequence[str]) -> str:
    """A tile's rows, and its ranges along the other axes that its block is divided along."""
    return " ".join(f"{axis} {tile[axis][0]}-{tile[axis][1]}" for axis in ("rows", *axes))


def _layers(layers: Sequence[str]) -> str:
    if len(layers) <= 2:
        return ", ".join(layers)
    return f"{layers[0]} to {layers[-1]} ({len(layers)})"


def _console(terminal: bool, *, stderr: bool) -> "Console":
    from rich.console import Console

    return Console(
        stderr=stderr,
        highlight=False,
        emoji=False,
        markup=False,
        width=None if terminal else PIPE_WIDTH,
    )
