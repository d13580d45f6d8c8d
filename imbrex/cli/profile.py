"""`imbrex profile`: measures devices again and shows how well the profiles predict."""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from imbrex import terminal
from imbrex.calls import plain
from imbrex.client import Client
from protos.errors import NotFound, Unavailable

POLL_S = 0.25
# A device takes at most a minute of idle time; a busy cluster is never idle for that long.
TIMEOUT_S = 600.0


def profile(devices: Sequence[str], url: str, *, as_json: bool) -> int:
    """Measures and prints; returns 1 if a device could not be measured."""
    with Client(url) as client:
        ready = [device.id for device in client.devices() if device.state == "ready"]
        if not ready:
            raise NotFound(cause="no device is ready", cure="See `imbrex status`")
        started = [client.profile_again(device) for device in devices or ready]
        names = {state.device: state.name for state in started}
        found = wait(client, names)
    if as_json:
        terminal.print_json({"devices": found})
    else:
        for status in found:
            _show(status)
    return 0 if all(status["state"] == "measured" for status in found) else 1


def wait(client: Client, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Waits until every device is measured or has failed, with a bar for each."""
    pause, deadline = threading.Event(), time.monotonic() + TIMEOUT_S
    with terminal.progress_bar() as bar:
        tasks = {device: bar.add_task(name, total=1.0) for device, name in names.items()}
        while True:
            states = [client.profile(device) for device in tasks]
            for state in states:
                share = state.progress if state.under_way else 1.0
                bar.update(tasks[state.device], completed=share)
            if not any(state.under_way for state in states):
                return [plain(state) for state in states]
            if time.monotonic() > deadline:
                raise Unavailable(
                    cause=f"not all devices were measured within {TIMEOUT_S:.0f} s",
                    cure="Send fewer requests: devices are measured only when idle",
                )
            pause.wait(POLL_S)


def _show(status: Mapping[str, Any]) -> None:
    console = terminal.out()
    console.print(terminal.heading(str(status["name"])))
    if status["error"]:
        console.print(Text(f"not measured: {status['error']['cause']}", "yellow"))
    found = status["profile"]
    if not found:
        return
    for engine, fits in {found["engine"]: found, **found["others"]}.items():
        console.print(_fits(engine, fits))
    console.print(
        "off by: mean difference of prediction and measurement on samples not used for the fit"
    )


def _fits(engine: str, profile: Mapping[str, Any]) -> Table:
    """How well an engine's layers and blocks are predicted."""
    table = terminal.table(f"layers by {engine}", ">samples", ">off by", ">bias")
    for kind, fit in sorted(profile["fits"].items()):
        table.add_row(kind, str(fit["samples"]), f"{fit['mape']:.1%}", f"{fit['bias']:+.1%}")
    table.add_row(
        "fused blocks",
        str(profile["blocks"]),
        f"{profile['block_mape']:.1%}",
        f"{profile['block_bias']:+.1%}",
    )
    return table
