"""The commands that use a running coordinator. Only what a command needs is imported: `--help`
stays fast.
"""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

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
from protos.errors import ImbrexError, PeerViolation, Unavailable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from coordinator.answers import DeviceStatus, Diagnosis, Finding
    from imbrex.client import Client

POLL_S = 0.2
# How often `status --watch` asks.
REFRESH_S = 1.0
# Time to prepare a plan, weights included, on other devices, and to end requests.
DRAIN_TIMEOUT_S = 600.0
_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim", "ok": "green"}


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
    from coordinator.answers import PlanChoice
    from coordinator.library.naming import public_name
    from imbrex.calls import media_type, plain, read_file
    from imbrex.client import Client
    from imbrex.picture_files import save_annotated

    body, model, choice = (
        read_file(image),
        public_name(model),
        PlanChoice.of(strategy, devices, allowed),
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
    parts = ", ".join(f"{phase} {phase_ms:.1f}" for phase, phase_ms in timing.items())
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
    from imbrex.client import Client

    with Client(url) as client:
        if watch:
            _watch(client)
        state = _state(client)
        saved = save_cluster(client, save) if save is not None else []
    terminal.tell(state, _report(state), as_json=as_json)
    if saved and not as_json:
        terminal.out().print(f"saved: {', '.join(map(str, saved))}")


def save_cluster(client: "Client", target: Path) -> list[Path]:
    """Writes the live cluster as a cluster file, its profiles beside it.

    Raises:
        BadConfiguration: a file cannot be written.
        PeerViolation: the coordinator names files outside the folder.
    """
    from imbrex.described import write

    described = client.cluster_files(target.stem[:64])
    files = {target.parent / name: text for name, text in described.profiles.items()}
    if any(path.name != name for path, name in zip(files, described.profiles, strict=True)):
        raise PeerViolation(
            cause=f"{client.shown} names profiles outside the folder of {target}",
            cure="Run the same version of imbrex everywhere",
        )
    for path, text in {**files, target: described.file}.items():
        write(path, text)
    return [target, *files]


def _watch(client: "Client") -> NoReturn:
    """Shows the state until Ctrl-C; waits for a coordinator that goes away."""
    from rich.live import Live
    from rich.text import Text

    pause = threading.Event()
    with Live(Text("..."), console=terminal.out(), auto_refresh=False) as live:
        while True:
            try:
                latest = _report(_state(client))
            except ImbrexError as error:
                latest = Text(str(error), style="yellow")
            live.update(latest, refresh=True)
            pause.wait(REFRESH_S)


def _state(client: "Client") -> dict[str, Any]:
    from imbrex.calls import plain

    reason = client.not_ready_because()
    return {
        "url": client.shown,
        "ready": not reason,
        "reason": reason,
        "devices": plain(client.devices()),
        **plain(client.catalogue()),
    }


def _report(state: Mapping[str, Any]) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    from models.tensors.memory import megabytes

    ready = Text("ready", "green") if state["ready"] else Text(state["reason"], "yellow")
    devices = (
        terminal.devices_table(state["devices"])
        if state["devices"]
        else Text("no devices; start `imbrex worker` on one")
    )
    return Group(
        Text.assemble((state["url"], "bold"), "  ", ready),
        "",
        devices,
        "",
        terminal.models_table(state["models"]),
        Text(
            f"weights take {megabytes(state['weight_bytes'])}; beyond "
            f"{megabytes(state['max_models_bytes'])}, unused models are unloaded",
            style="dim",
        ),
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
    from imbrex.calls import plain
    from imbrex.client import Client

    with Client(url) as client, terminal.waiting("examining the cluster"):
        found = client.doctor()
    errors = sum(finding.severity == "error" for finding in found.findings)
    if as_json:
        terminal.print_json({"ok": not errors, **plain(found)})
    else:
        show_diagnosis(found, terminal.out())
    raise typer.Exit(1 if errors else 0)


def show_diagnosis(found: "Diagnosis", out: "Console") -> None:
    """What was looked at on each device; then every cause once, each with its cure behind it."""
    from rich.text import Text

    for (device, address), rows in groupby(
        found.checks, lambda check: (check.device, check.address)
    ):
        where = f" ({address})" if address not in ("", device) else ""
        out.print(Text(f"{device}{where}", style="bold"))
        for row in rows:
            state = Text(f"  {row.state:8}", style=_STYLES[row.state])
            out.print(Text.assemble(state, (f"{row.what:14}{row.seen}", "")))
        out.print()
    for cause in _once(found.findings):
        out.print()
        out.print(cause)
    if not found.findings:
        out.print("no problem found")


def _once(findings: "Sequence[Finding]") -> "list[Text]":
    """Findings with the same code, cause and cure as one, which names all of its devices; of those
    that only share the cure, the cure is told behind the last.
    """
    from rich.text import Text

    causes: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for finding in findings:
        same = causes.setdefault((finding.severity, finding.code, finding.cure), {})
        same.setdefault(finding.cause, []).append(finding.device)
    told = []
    for (severity, code, cure), by_cause in causes.items():
        lines = Text()
        for cause, devices in by_cause.items():
            where = ", ".join(filter(None, devices))
            lines.append(f"{severity:8} ", style=_STYLES[severity])
            lines.append(f"{where}: {cause}\n" if where else f"{cause}\n")
        lines.append(f"{'cure:':8} {cure} [{code}]", style="dim")
        told.append(lines)
    return told


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
        left = sum(device.state == "ready" for device in client.devices())
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
    events = [event for event in found["traceEvents"] if event["ph"] == "X"]
    rows = {(event["pid"], event["tid"]) for event in events}
    terminal.tell(
        {"request": request, "file": str(output), "events": len(events), "rows": len(rows)},
        f"{output}: {len(events)} events in {len(rows)} rows; open it at "
        "https://ui.perfetto.dev or chrome://tracing",
        as_json=as_json,
    )
