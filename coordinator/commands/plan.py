"""`imbrex plan`: the plan for a described cluster, or the one in force on a running coordinator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from coordinator import terminal
from coordinator.commands.described import find_planners_here, network_of, write
from coordinator.planning.cluster_file import load_cluster
from coordinator.planning.picture import plan_svg
from coordinator.planning.plan_json import parse_plan, plan_json
from coordinator.planning.propose import propose
from coordinator.planning.strategies import strategy


@dataclass(frozen=True, slots=True)
class Source:
    """Where the plan comes from: a described cluster and a strategy for it, else a URL."""

    cluster: Path | None
    strategy: str
    url: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A plan's JSON, and what people call its devices."""

    plan: Mapping[str, Any]
    names: Mapping[str, str]


def plan(model: str, source: Source, *, explain: bool, save: Path | None, as_json: bool) -> int:
    """Prints the plan."""
    with terminal.waiting(f"planning {model}"):
        shown = _in_force(model, source.url) if source.cluster is None else _made(model, source)
    if save is not None:
        _save(shown, model, save)
    if as_json:
        terminal.print_json(shown.plan)
        return 0
    console = terminal.out()
    _show(shown, console, explain=explain)
    if save is not None:
        console.print(f"saved: {save}")
    return 0


def _made(model: str, source: Source) -> Shown:
    assert source.cluster is not None
    find_planners_here()
    planner = strategy(source.strategy)
    cluster = load_cluster(source.cluster)
    network = network_of(model)
    made = propose(planner, network, cluster)
    names = {str(device.id): device.name for device in cluster.devices}
    return Shown(plan_json(made, network), names)


def _in_force(model: str, url: str) -> Shown:
    from coordinator.client import CoordinatorClient

    with CoordinatorClient(url) as client:
        names = {str(each["id"]): str(each["name"]) for each in client.devices()}
        return Shown(client.plan(model), names)


def _save(shown: Shown, model: str, target: Path) -> None:
    text = json.dumps(shown.plan, indent=1) + "\n"
    if target.suffix.lower() == ".svg":
        network = network_of(model)
        text = plan_svg(parse_plan(text, network), network, shown.names)
    write(target, text)


def _show(shown: Shown, console: Console, *, explain: bool) -> None:
    made, names = shown.plan, shown.names
    console.print(f"{made['model']}, {terminal.plan_sentence(made)}")
    console.print(terminal.plan_table(made, names))
    if explain:
        for each in made["devices_unused"]:
            console.print(f"{names.get(each['device'], each['device'])} left out: {each['reason']}")
        for note in made["notes"]:
            console.print(f"note: {note}")
