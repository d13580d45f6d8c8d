"""`imbrex drain` and `imbrex resume`: take a device out of use and back."""

from __future__ import annotations

import threading
import time

from coordinator.answers import DeviceStatus
from imbrex import terminal
from imbrex.calls import plain
from imbrex.client import Client
from protos.errors import Unavailable

POLL_S = 0.2
# Time to prepare a plan, weights included, on other devices, and to end requests.
TIMEOUT_S = 600.0


def drain(device: str, url: str, *, wait: bool, as_json: bool) -> int:
    """Drains a device; with `wait`, returns when nothing runs on it any longer."""
    with Client(url) as client:
        found = client.drain(device)
        if wait:
            with terminal.waiting(f"{found.name} is finishing its work"):
                found = _until_drained(client, found)
        left = sum(each.state == "ready" for each in client.devices())
    if as_json:
        terminal.print_json(plain(found))
        return 0
    out = terminal.out()
    safe = ": it can be switched off" if found.state != "draining" else ""
    out.print(f"{found.name} is {found.state}{safe}")
    out.print(f"until `imbrex resume {found.name}`, {_rest(left)}")
    return 0


def resume(device: str, url: str, *, as_json: bool) -> int:
    """Uses a device again."""
    with Client(url) as client:
        found = client.resume(device)
    if as_json:
        terminal.print_json(plain(found))
    else:
        terminal.out().print(f"{found.name} is {found.state}, and used again")
    return 0


def _until_drained(client: Client, asked: DeviceStatus) -> DeviceStatus:
    """Its state when its work has ended or it has gone away."""
    pause, deadline = threading.Event(), time.monotonic() + TIMEOUT_S
    found = asked
    while found.state == "draining":
        if time.monotonic() > deadline:
            raise Unavailable(
                cause=f"{asked.name} has not finished its work after {TIMEOUT_S:.0f} s",
                cure="See `imbrex status`; it is safe to switch it off: other devices then "
                "compute its part",
            )
        pause.wait(POLL_S)
        found = next((d for d in client.devices() if d.id == asked.id), asked)
    return found


def _rest(left: int) -> str:
    if not left:
        return "requests cannot be answered: no other device is ready"
    return "the other device computes" if left == 1 else f"the other {left} devices compute"
