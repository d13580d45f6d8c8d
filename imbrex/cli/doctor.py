"""`imbrex doctor`: a check list of every device, and what is wrong, with cause and cure."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from coordinator.answers import Check, Diagnosis, Finding
from imbrex import terminal
from imbrex.calls import plain
from imbrex.client import Client

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim", "ok": "green"}


def doctor(url: str, *, as_json: bool) -> int:
    """Prints check list and findings; returns 1 if something does not work."""
    with Client(url) as client, terminal.waiting("examining the cluster"):
        found = client.doctor()
    errors = sum(each.severity == "error" for each in found.findings)
    if as_json:
        terminal.print_json({"ok": not errors, **plain(found)})
    else:
        show(found, terminal.out())
    return 1 if errors else 0


def show(found: Diagnosis, out: Console) -> None:
    """What was looked at on each device; then every cause once, each with its cure behind it."""
    for (device, address), rows in groupby(found.checks, lambda each: (each.device, each.address)):
        _device(device, address, list(rows), out)
    for each in _once(found.findings):
        out.print()
        out.print(each)
    if not found.findings:
        out.print("no problem found")


def _device(name: str, address: str, rows: Sequence[Check], out: Console) -> None:
    where = f" ({address})" if address not in ("", name) else ""
    out.print(Text(f"{name}{where}", style="bold"))
    for each in rows:
        state = Text(f"  {each.state:8}", style=_STYLES[each.state])
        out.print(Text.assemble(state, (f"{each.what:14}{each.seen}", "")))
    out.print()


def _once(findings: Sequence[Finding]) -> list[Text]:
    """Findings with the same code, cause and cure as one, which names all of its devices; of those
    that only share the cure, the cure is told behind the last.
    """
    causes: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for each in findings:
        same = causes.setdefault((each.severity, each.code, each.cure), {})
        same.setdefault(each.cause, []).append(each.device)
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
