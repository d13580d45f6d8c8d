"""`imbrex plan`: the plan for a described cluster, or one of a running coordinator."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coordinator.answers import PlanChoice
from coordinator.costs.cluster import Cluster, Link, Planner, fastest
from coordinator.library.naming import public_name
from coordinator.planning.cluster_file import parse_cluster
from coordinator.planning.plan_json import parse_plan, plan_json, save_plan
from coordinator.planning.planners.propose import propose
from coordinator.planning.planners.strategies import STRATEGIES
from coordinator.planning.simulate.simulator import simulate
from coordinator.plans.named import names as strategies
from coordinator.plans.named import strategy
from coordinator.plans.sent_plan import adopt
from coordinator.serving.common.plan_picture import plan_svg
from coordinator.tasks.plan import Plan
from imbrex import terminal
from imbrex.described import find_planners_here, load_cluster, write
from models.catalogue import catalogue, loading
from models.cut.units import Network
from models.tensors.precision import Wire
from protos.errors import ImbrexError, NotFound
from protos.wire.facts import DeviceId

# The smallest difference worth a sentence, about the error of predictions.
_NOTABLE = 0.01
_FASTER_LINK = 10
_Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Alternative:
    """An alternative and its predicted latency; `reason` if it is impossible."""

    what: str
    latency_s: float = 0.0
    reason: str = ""

    def is_notable(self, now_s: float) -> bool:
        """Whether it is notably faster."""
        return not self.reason and self.latency_s < now_s * (1 - _NOTABLE)

    def would(self, now_s: float) -> str:
        """A part of a sentence."""
        if self.reason:
            return f"{self.what} cannot: {self.reason}"
        change = self.latency_s / now_s - 1
        told = "the same" if abs(change) < _NOTABLE / 2 else f"{change:+.0%}"
        return f"{self.what} {terminal.duration(self.latency_s)} ({told})"


@dataclass(frozen=True, slots=True)
class Situation:
    """A plan, the cluster that it is for, and the planner that made it. `scale`: what the plan was
    told to take, over what it takes in a simulation of `cluster`, which does not know all that a
    coordinator has learnt; alternatives are told in the plan's seconds.
    """

    network: Network
    cluster: Cluster
    plan: Plan
    planner: Planner
    scale: float = 1.0

    @property
    def now_s(self) -> float:
        """The plan's predicted latency."""
        return self.scale * self.plan.predicted_latency_s

    def planned(
        self, what: str, cluster: Cluster, planner: Planner | None = None, wire: Wire | None = None
    ) -> _Alternative:
        """The result with another cluster, planner or wire."""
        try:
            allowed = wire or self.plan.wire
            plan = propose(planner or self.planner, self.network, cluster, allowed)
        except ImbrexError as error:
            return _Alternative(what, reason=error.cause)
        return _Alternative(what, self.scale * plan.predicted_latency_s)


@dataclass(frozen=True, slots=True)
class PlanSource:
    """The source of the plan: a cluster file, else a coordinator's URL; the strategy and number of
    devices, if chosen.
    """

    cluster: Path | None
    url: str
    choice: PlanChoice


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

    def named(tile: Mapping[str, Any]) -> dict[str, Any]:
        return {**tile, "device": names.get(tile["device"], tile["device"])}

    plan = shown.plan
    blocks = [{**block, "tiles": [*map(named, block["tiles"])]} for block in plan["blocks"]]
    return {
        **plan,
        "baseline_device": names.get(plan["baseline_device"], plan["baseline_device"]),
        "devices_used": [names.get(device, device) for device in plan["devices_used"]],
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
        names = {device.id: device.name for device in client.devices()}
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
    for unused in shown.plan["devices_unused"]:
        planned.add(unused["device"])
        yield f"{shown.names.get(unused['device'], unused['device'])} left out: {unused['reason']}"
    for device in cluster.devices:
        if device.id not in planned:
            yield f"{device.name} left out: a plan for the fastest {len(planned)} was requested"
    for note in shown.plan["notes"]:
        yield f"Note: {note}"


def _called(cluster: Cluster, shown: Shown) -> Cluster:
    """The cluster with the plan's device ids: a coordinator's file has names instead."""
    ids = {name: device for device, name in shown.names.items()}
    devices = tuple(
        replace(device, id=DeviceId(ids.get(device.name, device.id))) for device in cluster.devices
    )
    return replace(cluster, devices=devices)


def sentences(situation: Situation, step: _Announce) -> Iterator[str]:
    """Sentences on the number of devices, other strategies, and options that would help."""
    now_s = situation.now_s
    numbers = [alternative.would(now_s) for alternative in _numbers(situation, step)]
    used = len(situation.plan.devices)
    if numbers:
        yield (
            f"Why {used} of {len(situation.cluster.devices)} devices: it takes "
            f"{terminal.duration(now_s)}; planned by the same strategy, {_listed(numbers)}."
        )
    others: list[_Alternative] = []
    for name, planner in STRATEGIES.items():
        if name not in (situation.plan.strategy, "auto"):
            step(name)
            others.append(situation.planned(name, situation.cluster, planner))
    yield f"Other strategies would take: {_listed([other.would(now_s) for other in others])}."
    # One that beats the plan, which `auto` may have ruled out by an estimate.
    faster = [alternative for alternative in others if alternative.is_notable(now_s)]
    if faster:
        best = min(faster, key=lambda option: option.latency_s)
        yield f"{best.what} would be faster here: plan with --strategy {best.what}."
    yield from _opt_in_sentences(now_s, list(_opt_ins(situation, step)))


def _numbers(situation: Situation, step: _Announce) -> Iterator[_Alternative]:
    cluster, used = situation.cluster, len(situation.plan.devices)
    there = len(cluster.devices)
    for count in sorted({1, used - 1, used + 1, there} - {used, 0}):
        if count <= there:
            step(f"{count} devices")
            devices = "1 device" if count == 1 else f"{count} devices"
            yield situation.planned(f"{devices} would take", fastest(cluster, count))
    taking = [cluster.device(device) for device in situation.plan.devices]
    slowest = min(taking, key=lambda device: device.speed)
    without = replace(
        cluster, devices=tuple(device for device in cluster.devices if device != slowest)
    )
    if len(taking) > 1 and {device.speed for device in taking} != {slowest.speed}:
        step(f"without {slowest.name}")
        yield situation.planned(f"without {slowest.name}, the slowest, it would take", without)


def _opt_ins(situation: Situation, step: _Announce) -> Iterator[_Alternative]:
    step("opt-ins")
    cluster = situation.cluster

    def faster(link: Link) -> Link:
        return replace(link, bytes_per_s=link.bytes_per_s * _FASTER_LINK)

    yield situation.planned(
        f"a network {_FASTER_LINK} times as fast would make it",
        replace(
            cluster,
            # The host's own worker reads from memory as before.
            devices=tuple(
                device if device.host else replace(device, link=faster(device.link))
                for device in cluster.devices
            ),
            uplink=faster(cluster.uplink) if cluster.uplink else None,
        ),
    )
    if situation.plan.wire == "exact":
        yield situation.planned(
            "16-bit floats on the wire (--wire fp16: answers that differ a little) would make it",
            situation.cluster,
            wire="fp16",
        )
    if any(block.barrier for block in situation.plan.blocks[1:]):
        free = tuple(replace(block, barrier=False) for block in situation.plan.blocks)
        plan = replace(situation.plan, blocks=free)
        latency_s = simulate(plan, situation.network.wired(plan.wire), situation.cluster).latency_s
        yield _Alternative("leaving out its barriers would make it", situation.scale * latency_s)


def _opt_in_sentences(now_s: float, found: Sequence[_Alternative]) -> Iterator[str]:
    helping = [alternative for alternative in found if alternative.is_notable(now_s)]
    for alternative in sorted(helping, key=lambda one: one.latency_s):
        sentence = alternative.would(now_s)
        yield sentence[0].upper() + sentence[1:] + "."
    if len(helping) < len(found):
        rest = [alternative.what.partition(" would")[0].partition(" (")[0] for alternative in found]
        rest = [
            what
            for what, alternative in zip(rest, found, strict=True)
            if alternative not in helping
        ]
        yield f"Not worth it here: {_listed(rest)}."


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts) if parts else "none"
