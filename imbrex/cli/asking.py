"""The commands that use a running coordinator. Nothing but typer is imported here: `--help` stays
fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imbrex.cli.options import (
    URL,
    ChosenStrategy,
    DeviceArgument,
    DevicesOption,
    Json,
    ModelOption,
    PlanFileOption,
    Save,
    Url,
    WireOption,
    known_wire,
)


def add_asking(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(infer)
    app.command()(status)
    app.command()(profile)
    app.command()(doctor)
    app.command()(drain)
    app.command()(resume)
    app.command()(trace)


def infer(  # noqa: PLR0913, PLR0917 - typer reads the flags from the parameters
    image: Annotated[
        Path, typer.Argument(metavar="IMAGE", help="A picture, or tensors in an .npz file.")
    ],
    model: ModelOption = "digits",
    url: Url = URL,
    strategy: ChosenStrategy = None,
    devices: DevicesOption = None,
    plan: PlanFileOption = None,
    wire: WireOption = None,
    min_score: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="The least score of a box. [default: the sidecar's]"),
    ] = None,
    save: Save = None,
    as_json: Json = False,
) -> None:
    """Send an image to a coordinator and print the answer.

    \b
    imbrex infer sheet.png
    imbrex infer sheet.png --url http://pi-1:8460 --save answer.png
    imbrex infer inputs.npz --model vgg16 --json
    imbrex infer sheet.png --strategy elimination --devices 2
    imbrex infer sheet.png --plan plan.json
    imbrex infer yard.jpg --model yolo11n --min-score 0.5
    """
    if plan is not None and (strategy or devices or wire):
        raise typer.BadParameter(
            "a plan has its own strategy, devices and wire", param_hint="--plan"
        )
    allowed = known_wire(wire)
    from coordinator.answers import Choice
    from imbrex.cli import infer as command

    wish = command.Wish(Choice.of(strategy, devices, allowed), plan, min_score)
    raise typer.Exit(command.infer(image, model, url, wish, save=save, as_json=as_json))


def status(
    url: Url = URL,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="CLUSTER.toml", help="Save the cluster as a file for `plan` and `simulate`."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the devices and models of a running coordinator.

    \b
    imbrex status
    imbrex status --watch
    imbrex status --url http://pi-1:8460 --json
    imbrex status --save home.toml      (then: imbrex simulate vgg16 --cluster home.toml)
    """
    if watch and (as_json or save):
        raise typer.BadParameter("--watch shows a table; use --json and --save without it")
    if save is not None and save.suffix.lower() != ".toml":
        raise typer.BadParameter(f"{save} is not a .toml file", param_hint="--save")
    from imbrex.cli import status as command

    raise typer.Exit(
        command.watch(url) if watch else command.status(url, save=save, as_json=as_json)
    )


def doctor(url: Url = URL, as_json: Json = False) -> None:
    """Check every device of a cluster: what is wrong, and how to fix it.

    Prints a check list of each device (power, heat, memory, disk, clock, cable, Wi-Fi, ...), has
    devices try to reach each other, and listens for announcements. Takes a few seconds; requests go
    on meanwhile. The exit code is 1 if something does not work; warnings alone leave it 0.

    \b
    imbrex doctor
    imbrex doctor --url http://pi-1:8460 --json
    """
    from imbrex.cli import doctor as command

    raise typer.Exit(command.doctor(url, as_json=as_json))


def drain(
    device: DeviceArgument,
    url: Url = URL,
    wait: Annotated[
        bool,
        typer.Option("--wait/--no-wait", help="Wait until nothing is running on it any more."),
    ] = True,
    as_json: Json = False,
) -> None:
    """Stop giving a device work, before a reboot, an upgrade or a move.

    Requests in flight finish as planned; later ones are computed without it. It stays
    drained until `imbrex resume`, even if it or the coordinator restarts.

    \b
    imbrex drain pi-3 && ssh pi-3 sudo reboot
    imbrex resume pi-3
    """
    from imbrex.cli import drain as command

    raise typer.Exit(command.drain(device, url, wait=wait, as_json=as_json))


def resume(device: DeviceArgument, url: Url = URL, as_json: Json = False) -> None:
    """Use a device again that was drained or quarantined.

    \b
    imbrex resume pi-3
    """
    from imbrex.cli import drain as command

    raise typer.Exit(command.resume(device, url, as_json=as_json))


def profile(
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="D", help="A device's id or name; repeatable. [default: all]"),
    ] = None,
    url: Url = URL,
    as_json: Json = False,
) -> None:
    """Measure devices again: what each kind of layer costs on them.

    Takes at most a minute for each kind of device, between requests: devices that compute alike
    share one measurement. Then shows how well the profile predicts layers that it was not fitted
    to.

    \b
    imbrex profile
    imbrex profile --device pi-1 --url http://pi-1:8460
    """
    from imbrex.cli import profile as command

    raise typer.Exit(command.profile(tuple(device or ()), url, as_json=as_json))


def trace(
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="The request_id of an answer.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the trace.")
    ],
    url: Url = URL,
    as_json: Json = False,
) -> None:
    """Save where a recent request spent its time, as a Chrome trace.

    A row for each device, and for each link and direction, on one clock. Open the file at
    https://ui.perfetto.dev or chrome://tracing.

    \b
    imbrex infer sheet.png --json | jq -r .request_id
    imbrex trace 3f9c2e81a7b4 -o trace.json
    """
    from imbrex.cli import trace as command

    raise typer.Exit(command.trace(request, url, output, as_json=as_json))
