"""`imbrex doctor`: what is wrong with a cluster, with cause and cure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from coordinator.serving.v1.answers import Finding
from imbrex import terminal
from imbrex.calls import plain
from imbrex.client import Client

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def doctor(url: str, *, as_json: bool) -> int:
    """Prints the findings; returns 1 if something does not work."""
    with Client(url) as client, terminal.waiting("examining the cluster"):
        found = client.doctor()
    errors = sum(each.severity == "error" for each in found)
    if as_json:
        terminal.print_json({"ok": not errors, "findings": plain(found)})
    else:
        _show(found, terminal.out())
    return 1 if errors else 0


def _show(found: Sequence[Finding], out: Console) -> None:
    for each in found:
        where = f"{each.device}: " if each.device else ""
        severity = Text(f"{each.severity:8}", style=_STYLES[each.severity])
        out.print(Text.assemble(severity, (f"{where}{each.cause}", "")))
        out.print(Text(f"         {each.cure} [{each.code}]", style="dim"))
    if not found:
        out.print("no problem found")
