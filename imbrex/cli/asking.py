"""The commands that use a running coordinator. Only what a command needs is imported: `--help`
stays fast.
"""

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from imbrex import terminal
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
from protos.errors import Unavailable

if TYPE_CHECKING:
    from coordinator.answers import DeviceStatus
    from imbrex.client import Client

POLL_S = 0.2
# Time to prepare a plan, weights included, on other devices, and to end requests.
DRAIN_TIMEOUT_S = 600.0


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
    from coordinator.library.naming import public_name
    from imbrex.calls import media_type, plain, read_file
    from imbrex.client import Client
    from imbrex.pictures import save_annotated

    body, model, choice = (
        read_file(image),
        public_name(model),
        Choice.of(strategy, devices, allowed),
    )
    with Client(url) as client, terminal.waiting(f"{image.name} through {model}"):
        if plan is not None:
            choice = client.send_plan(model, read_file(plan))
        asked = client.infer(model, body, media_type(image), choice, min_score=min_score)
        answer = plain(asked)
    if save is not None:
        save_annotated(body, answer["predictions"], save)
    if as_json:
        terminal.print_json(answer)
        return
    console, found = terminal.out(), answer["predictions"]
    console.print(terminal.predictions_table(found) if found else "nothing found")
    console.print(_phases(answer))
    for what, why in answer.get("assumed", {}).items():
        console.print(f"assumed {what}: {why} (imbrex models confirm {model})", soft_wrap=True)
    if save is not None:
        console.print(f"annotated picture: {save}")


def _phases(answer: Mapping[str, Any]) -> str:
    """Where an answer's time went, in one line."""
    timing = dict(answer["timing_ms"])
    total = timing.pop("total")
    parts = ", ".join(f"{phase} {each:.1f}" for phase, each in timing.items())
    count = len(answer["devices"])
    devices = "1 device" if count == 1 else f"{count} devices"
    return f"{total:.1f} ms on {devices} ({parts}); plan {answer['plan_version']}"


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
        bool, typer.Option("--wait/--no-wait", help="Wait until nothing is running on it any more.")
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
    from imbrex.calls import plain
    from imbrex.client import Client

    with Client(url) as client:
        found = client.drain(device)
        if wait:
            with terminal.waiting(f"{found.name} is finishing its work"):
                found = _until_drained(client, found)
        left = sum(each.state == "ready" for each in client.devices())
    safe = ": it can be switched off" if found.state != "draining" else ""
    rest = "requests cannot be answered: no other device is ready"
    if left:
        others = "the other device" if left == 1 else f"the other {left} devices"
        rest = f"{others} {'computes' if left == 1 else 'compute'}"
    told = f"{found.name} is {found.state}{safe}\nuntil `imbrex resume {found.name}`, {rest}"
    terminal.tell(plain(found), told, as_json=as_json)


def _until_drained(client: "Client", asked: "DeviceStatus") -> "DeviceStatus":
    """Its state when its work has ended or it has gone away."""
    pause, deadline = threading.Event(), time.monotonic() + DRAIN_TIMEOUT_S
    found = asked
    while found.state == "draining":
        if time.monotonic() > deadline:
            raise Unavailable(
                cause=f"{asked.name} has not finished its work after {DRAIN_TIMEOUT_S:.0f} s",
                cure="See `imbrex status`; it is safe to switch it off: other devices then "
                "compute its part",
            )
        pause.wait(POLL_S)
        found = next((d for d in client.devices() if d.id == asked.id), asked)
    return found


def resume(device: DeviceArgument, url: Url = URL, as_json: Json = False) -> None:
    """Use a device again that was drained or quarantined.

    \b
    imbrex resume pi-3
    """
    from imbrex.calls import plain
    from imbrex.client import Client

    with Client(url) as client:
        found = client.resume(device)
    terminal.tell(plain(found), f"{found.name} is {found.state}, and used again", as_json=as_json)


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
    from imbrex.calls import plain
    from imbrex.client import Client
    from imbrex.described import write

    with Client(url) as client:
        found = plain(client.trace(request))
    write(output, json.dumps(found), "--output")
    events = [each for each in found["traceEvents"] if each["ph"] == "X"]
    rows = {(each["pid"], each["tid"]) for each in events}
    terminal.tell(
        {"request": request, "file": str(output), "events": len(events), "rows": len(rows)},
        f"{output}: {len(events)} events in {len(rows)} rows; open it at "
        "https://ui.perfetto.dev or chrome://tracing",
        as_json=as_json,
    )
