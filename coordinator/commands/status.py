"""`imbrex status`: devices and models of a running coordinator."""

from __future__ import annotations

import threading
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from coordinator import terminal
from coordinator.client import CoordinatorClient
from protos.errors import ImbrexError

REFRESH_S = 1.0


def status(url: str, *, as_json: bool) -> int:
    """Prints the state once."""
    with CoordinatorClient(url) as client:
        state = _state(client)
    if as_json:
        terminal.print_json(state)
    else:
        terminal.out().print(_report(state))
    return 0


def watch(url: str) -> int:
    """Shows the state until Ctrl-C; a coordinator that goes away is waited for."""
    with (
        CoordinatorClient(url) as client,
        Live(Text("..."), console=terminal.out(), auto_refresh=False) as live,
    ):
        pause = threading.Event()
        while True:
            live.update(_latest(client), refresh=True)
            pause.wait(REFRESH_S)


def _latest(client: CoordinatorClient) -> RenderableType:
    try:
        return _report(_state(client))
    except ImbrexError as error:
        return Text(str(error), style="yellow")


def _state(client: CoordinatorClient) -> dict[str, Any]:
    reason = client.not_ready_because()
    return {
        "url": client.url,
        "ready": not reason,
        "reason": reason,
        "devices": client.devices(),
        "models": client.models(),
    }


def _report(state: dict[str, Any]) -> RenderableType:
    ready = Text("ready", "green") if state["ready"] else Text(state["reason"], "yellow")
    devices = (
        terminal.devices_table(state["devices"])
        if state["devices"]
        else Text("no device; start `imbrex worker` on one")
    )
    return Group(
        Text.assemble((state["url"], "bold"), "  ", ready),
        "",
        devices,
        "",
        terminal.models_table(state["models"]),
    )
