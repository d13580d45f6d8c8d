"""Options that commands share, as typer reads them. Nothing but typer is imported here: `--help`
stays fast.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

URL = "http://127.0.0.1:8460"


def model_names(incomplete: str) -> list[str]:
    """Shell completion of MODEL: names; the shell completes files itself."""
    from models.catalogue.catalogue import names
    from models.catalogue.installed import Store

    known = (*names(), *Store().installed())
    return [name for name in known if name.startswith(incomplete)]


Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object.")]
Url = Annotated[str, typer.Option(help="The coordinator's URL.", envvar="IMBREX_URL")]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE.toml", help="A file of settings; flags override it."),
]
StateDir = Annotated[Path | None, typer.Option(metavar="DIR", help="The directory for its state.")]
ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        help="A model's name (see `imbrex models list`) or an .onnx file.",
        autocompletion=model_names,
    ),
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model's name (see `imbrex models list`) or an .onnx file.",
        autocompletion=model_names,
    ),
]
DeviceArgument = Annotated[str, typer.Argument(metavar="DEVICE", help="The device's name or id.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name from `imbrex models list`.")]
Default = Annotated[
    bool,
    typer.Option(
        "--default", help="Make it the model that answers for its task when a request names none."
    ),
]
StrategyOption = Annotated[str | None, typer.Option(help="The planning strategy. [default: auto]")]
ChosenStrategy = Annotated[
    str | None, typer.Option(help="The planning strategy. [default: auto, or the coordinator's]")
]
DevicesOption = Annotated[
    int | None, typer.Option(min=1, help="Use only the N fastest devices. [default: all]")
]
DeviceCounts = Annotated[
    str | None,
    typer.Option(
        metavar="1..N",
        help="Repeat with 1 to N of the fastest devices. [default: all of them at once]",
    ),
]
PlanFileOption = Annotated[
    Path | None, typer.Option("--plan", metavar="PLAN.json", help="Execute exactly this plan.")
]
WireOption = Annotated[
    str | None,
    typer.Option(
        "--wire",
        metavar="exact|fp16|int8",
        help="The format in which feature maps may travel between devices, where that is faster. "
        "fp16 and int8 change the answer slightly: see `imbrex check --wire`. "
        "[default: what the model allows]",
    ),
]
PrecisionOption = Annotated[
    Literal["exact", "fp16", "int8"] | None,
    typer.Option(
        help="What answers promise. exact: float32 throughout. fp16: maps may travel and devices "
        "may compute in half precision. int8: maps may travel in 8 bits. [default: exact]"
    ),
]
Save = Annotated[
    Path | None, typer.Option("--save", metavar="OUT.png", help="Write the annotated picture.")
]


def known_wire(wire: str | None) -> str:
    """Validates a wire; empty means what the model allows."""
    from models.tensors.precision import WIRES

    if wire is not None and wire not in WIRES:
        raise typer.BadParameter(f"{wire!r} is not one of {', '.join(WIRES)}", param_hint="--wire")
    return wire or ""
