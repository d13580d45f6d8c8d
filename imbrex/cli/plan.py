"""`imbrex plan`: the plan for a described cluster, or one of a running coordinator."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coordinator.answers import Choice
from coordinator.costs.cluster import Cluster, fastest
from coordinator.library.naming import public_name
from coordinator.planning.cluster_file import parse_cluster
from coordinator.planning.plan_json import parse_plan, plan_json, save_plan
from coordinator.planning.planners.propose import propose
from coordinator.plans.named import names as strategies
from coordinator.plans.named import strategy
from coordinator.plans.sent_plan import adopt
from coordinator.serving.common.plan_picture import plan_svg
from imbrex import terminal
from imbrex.cli.alternatives import Situation, sentences
from imbrex.described import find_planners_here, load_cluster, write
from models.catalogue import catalogue, loading
from models.cut.units import Network
from models.tensors.precision import Wire
from protos.errors import NotFound
from protos.wire.facts import DeviceId


@dataclass(frozen=True, slots=True)
class PlanSource:
    """The source of the plan: a cluster file, else a coordinator's URL; the strategy and number of
    devices, if chosen.
    """

    cluster: Path | None
    url: str
    choice: Choice


@dataclass(frozen=True, slots=True)
class Shown:
    """A plan's JSON, the names of its devices, and (to explain it) the cluster."""

    plan: Mapping[str, Any]
    names: Mapping[str, str]
    cluster: Cluster | None = None


def plan(
    model: str,
    source: PlanSource,
    *,
    explain: bool,
    verbose: bool,
    save: Path | None,
    as_json: bool,
) -> int:
    """Prints the plan; `verbose`: each task of each device."""
    drawn = save is not None and save.suffix.lower() == ".svg"
    network: Network | None = None
    allowed: Wire = "exact"
    if explain or drawn or source.cluster is not None:
        with terminal.waiting(f"reading {model}"):
            network, allowed = _network(model, needed=drawn or source.cluster is not None)
    with terminal.waiting(f"planning {model}"):
        shown = (
            _made(network, source, allowed)
            if network is not None and source.cluster is not None
            else _of_coordinator(public_name(model), source, explain=explain)
        )
    if save is not None:
        text = save_plan(_by_name(shown))
        if network is not None and drawn:
            text = plan_svg(parse_plan(text, network), network)
        write(save, text)
    told = list(_explanation(shown, network, source.choice.strategy)) if explain else []
    if as_json:
        terminal.print_json({**shown.plan, "explanation": told} if explain else shown.plan)
        return 0
    console = terminal.out()
    console.print(f"{shown.plan['model']}, {terminal.plan_sentence(shown.plan)}")
    console.print(terminal.plan_table(shown.plan, shown.names, verbose=verbose))
    for sentence in told:
        console.print(sentence, soft_wrap=not console.is_terminal)
    if save is not None:
        console.print(f"saved: {save}")
    return 0


def _network(model: str, *, needed: bool) -> tuple[Network | None, Wire]:
    """The model's network, and what it allows to travel; a coordinator may serve models that this
    machine does not have.
    """
    try:
        loaded = catalogue.load(model)
    except NotFound:
        if needed:
            raise
        return None, "exact"
    return loading.network_of(loaded), loaded.sidecar.allowed_wire if loaded.sidecar else "exact"


def _by_name(shown: Shown) -> dict[str, Any]:
    """The plan with device ids replaced by names, if these are unique: names outlive a cluster, and
    plans are accepted with either.
    """
    called = list(shown.names.values())
    names = {device: name for device, name in shown.names.items() if called.count(name) == 1}

    def named(each: Mapping[str, Any]) -> dict[str, Any]:
        return {**each, "device": names.get(each["device"], each["device"])}

    plan = shown.plan
    blocks = [{**block, "tiles": [*map(named, block["tiles"])]} for block in plan["blocks"]]
    return {
        **plan,
        "baseline_device": names.get(plan["baseline_device"], plan["baseline_device"]),
        "devices_used": [names.get(each, each) for each in plan["devices_used"]],
        "devices_unused": [*map(named, plan["devices_unused"])],
        "blocks": blocks,
    }


def _made(network: Network, source: PlanSource, allowed: Wire) -> Shown:
    assert source.cluster is not None
    find_planners_here()
    planner = strategy(source.choice.strategy or "auto")
    cluster = load_cluster(source.cluster)
    chosen = fastest(cluster, source.choice.devices)
    made = propose(planner, network, chosen, source.choice.wire or allowed)
    names = {str(device.id): device.name for device in cluster.devices}
    return Shown(plan_json(made, network), names, cluster)


def _of_coordinator(model: str, source: PlanSource, *, explain: bool) -> Shown:
    from imbrex.calls import plain
    from imbrex.client import Client

    with Client(source.url) as client:
        names = {each.id: each.name for each in client.devices()}
        found = plain(client.plan(model, source.choice))
        if not explain:
            return Shown(found, names)
        described = client.cluster_files()
    read = described.profiles.__getitem__
    cluster = parse_cluster(described.file, read=lambda name: read(name).encode())
    return Shown(found, names, cluster)


def _explanation(shown: Shown, network: Network | None, chosen: str) -> Iterator[str]:
    """Explains the plan in sentences."""
    assert shown.cluster is not None
    cluster = _called(shown.cluster, shown)
    present = {str(device.id) for device in cluster.devices}
    if network is None:
        yield "To compare with other strategies, name the path of its .onnx file."
    elif present.issuperset(shown.plan["devices_used"]):
        # Simulates the alternatives, with a progress bar.
        made = adopt(json.dumps(shown.plan), network, cluster)
        planner = strategy(chosen or (made.strategy if made.strategy in strategies() else "auto"))
        with terminal.progress_bar() as bar:
            task = bar.add_task("", total=None)
            scale = shown.plan["predicted_latency_s"] / made.predicted_latency_s
            situation = Situation(network, cluster, made, planner, scale)
            told = list(sentences(situation, lambda what: bar.update(task, description=what)))
        yield from told
    planned = set(shown.plan["devices_used"])
    for each in shown.plan["devices_unused"]:
        planned.add(each["device"])
        yield f"{shown.names.get(each['device'], each['device'])} left out: {each['reason']}"
    for device in cluster.devices:
        if device.id not in planned:
            yield f"{device.name} left out: a plan for the fastest {len(planned)} was requested"
    for note in shown.plan["notes"]:
        yield f"Note: {note}"


def _called(cluster: Cluster, shown: Shown) -> Cluster:
    """The cluster with the plan's device ids: a coordinator's file has names instead."""
    ids = {name: device for device, name in shown.names.items()}
    devices = tuple(
        replace(each, id=DeviceId(ids.get(each.name, each.id))) for each in cluster.devices
    )
    return replace(cluster, devices=devices)
