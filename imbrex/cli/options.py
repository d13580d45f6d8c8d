"""Options that commands share, as typer reads them. Nothing but typer is imported here: `--help`
stays fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

URL = "http://127.0.0.1:8460"
WIRES = ("exact", "fp16", "int8")


def model_names(incomplete: str) -> list[str]:
    """What a shell offers in place of MODEL: names, and files are its own business."""
    from models.catalogue import names
    from models.installed import Store

    known = (*names(), *Store().installed())
    return [each for each in known if each.startswith(incomplete)]


Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object.")]
Url = Annotated[str, typer.Option(help="The coordinator.", envvar="IMBREX_URL")]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE.toml", help="Settings; flags win.")
]
Host = Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")]
Cluster = Annotated[str | None, typer.Option(help="Its name on mDNS. [default: home]")]
Mdns = Annotated[bool | None, typer.Option("--mdns/--no-mdns", help="Use multicast DNS.")]
Interfaces = Annotated[
    list[str] | None,
    typer.Option("--interface", metavar="ADDRESS", help="Where to use mDNS; repeatable."),
]
StateDir = Annotated[Path | None, typer.Option(metavar="DIR", help="Where to keep its state.")]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        help="A name (`imbrex models list`) or an .onnx file.",
        autocompletion=model_names,
    ),
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A name (`imbrex models list`) or an .onnx file.",
        autocompletion=model_names,
    ),
]
DeviceArgument = Annotated[str, typer.Argument(metavar="DEVICE", help="Its name or id.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="As in `imbrex models list`.")]
Default = Annotated[
    bool, typer.Option("--default", help="Let it answer for its task where none is named.")
]
Strategy = Annotated[str | None, typer.Option(help="How to plan. [default: auto]")]
ChosenStrategy = Annotated[
    str | None, typer.Option(help="How to plan. [default: auto, or as the coordinator does]")
]
Devices = Annotated[
    int | None, typer.Option(min=1, help="Over so many of the fastest. [default: all]")
]
DeviceCounts = Annotated[
    str | None,
    typer.Option(
        metavar="1..N", help="Over so many of the fastest devices. [default: all of them]"
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Option("--plan", metavar="PLAN.json", help="Execute exactly this plan."),
]
WireOption = Annotated[
    str | None,
    typer.Option(
        "--wire",
        metavar="exact|fp16|int8",
        help="What maps between blocks may travel as, where that is faster. fp16 and int8 change "
        "the answer a little: see `imbrex check --wire`. [default: what the model allows]",
    ),
]
Save = Annotated[
    Path | None, typer.Option("--save", metavar="OUT.png", help="Write the annotated picture.")
]


def said(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A daemon's flags, by the settings that its parameters are named after: those that were
    given, lists as tuples.
    """
    given = {name: value for name, value in parameters.items() if value not in (None, [])}
    given.pop("config", None)
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }


def known_wire(wire: str | None) -> str:
    """One of the wires, or empty for what the model allows; wrong usage otherwise."""
    if wire is not None and wire not in WIRES:
        raise typer.BadParameter(f"{wire!r} is none of {', '.join(WIRES)}", param_hint="--wire")
    return wire or ""
