"""`imbrex models list`: the networks that imbrex knows by name."""

from __future__ import annotations

from coordinator import terminal
from models import catalogue


def list_models(*, as_json: bool) -> int:
    """Prints the catalogue."""
    entries = [catalogue.entry(name) for name in catalogue.names()]
    if as_json:
        rows = [
            {
                "name": each.name,
                "task": each.task,
                "trained": each.trained,
                "description": each.description,
            }
            for each in entries
        ]
        terminal.print_json({"models": rows})
        return 0
    made = terminal.table("model", "task", "description")
    for each in entries:
        made.add_row(each.name, each.task, each.description)
    terminal.out().print(made)
    return 0
