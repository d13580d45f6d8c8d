"""`imbrex status`: devices and models of a running coordinator."""

import threading
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from imbrex import terminal
from imbrex.calls import plain
from imbrex.client import Client
from imbrex.described import write
from models.tensors.memory import megabytes
from protos.errors import ImbrexError, PeerViolation

REFRESH_S = 1.0


def status(url: str, *, save: Path | None, as_json: bool) -> int:
    """Prints the state once; saves the cluster as a file."""
    with Client(url) as client:
        state = _state(client)
        saved = save_cluster(client, save) if save is not None else []
    if as_json:
        terminal.print_json(state)
    else:
        terminal.out().print(_report(state))
        if saved:
            terminal.out().print(f"saved: {', '.join(map(str, saved))}")
    return 0


def save_cluster(client: Client, target: Path) -> list[Path]:
    """Writes the live cluster as a cluster file, its profiles beside it.

    Raises:
        BadConfiguration: a file cannot be written.
        PeerViolation: the coordinator names files outside the folder.
    """
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


def watch(url: str) -> int:
    """Shows the state until Ctrl-C; waits for a coordinator that goes away."""
    with (
        Client(url) as client,
        Live(Text("..."), console=terminal.out(), auto_refresh=False) as live,
    ):
        pause = threading.Event()
        while True:
            live.update(_latest(client), refresh=True)
            pause.wait(REFRESH_S)


def _latest(client: Client) -> RenderableType:
    try:
        return _report(_state(client))
    except ImbrexError as error:
        return Text(str(error), style="yellow")


def _state(client: Client) -> dict[str, Any]:
    reason = client.not_ready_because()
    return {
        "url": client.shown,
        "ready": not reason,
        "reason": reason,
        "devices": plain(client.devices()),
        **plain(client.catalogue()),
    }


def _report(state: dict[str, Any]) -> RenderableType:
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
