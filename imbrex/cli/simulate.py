"""`imbrex simulate`: predictions of all strategies for a cluster file, side by side."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.text import Text

from coordinator.costs.cluster import Cluster, Planner, fastest
from coordinator.planning.planners.single import single
from imbrex import library, terminal
from imbrex.cli.chart import speedup_svg
from imbrex.described import find_planners_here, load_cluster, network_of, write
from imbrex.library import Outcome, Predicted, Refused, predict
from models.cut.units import Network
from protos.errors import Infeasible

BAR = 24


def simulate(
    model: str,
    file: Path,
    strategies: Sequence[str],
    counts: Sequence[int] | None,
    plot: Path | None,
    *,
    as_json: bool,
) -> int:
    """Predicts strategies (`all`: every named one) over numbers of devices (None: all of the
    cluster) and prints, or draws; returns 1 if no strategy has a plan.
    """
    find_planners_here()
    planners = library.planners(strategies)
    cluster = load_cluster(file)
    clusters = [fastest(cluster, count) for count in counts or [len(cluster.devices)]]
    with terminal.waiting(f"reading {model}"):
        network = network_of(model)
    outcomes = _outcomes(network, clusters, planners)
    if plot is not None:
        everything = clusters
        if counts is None:
            everything = [fastest(cluster, n) for n in range(1, len(cluster.devices))]
            more = _outcomes(network, everything, planners)
            drawn = {name: [*more[name], *outcomes[name]] for name in planners}
        else:
            drawn = outcomes
        lines = {
            name: [
                (outcome.count, outcome.speedup)
                for outcome in found
                if isinstance(outcome, Predicted)
            ]
            for name, found in drawn.items()
        }
        lines = {name: line for name, line in lines.items() if line}
        write(plot, speedup_svg(f"{network.name}, predicted", lines), "--plot")
    if as_json:
        terminal.print_json(_json(network.name, outcomes, counts))
    else:
        _show(network.name, len(cluster.devices), outcomes)
        if plot is not None:
            terminal.out().print(f"drawn: {plot}")
    feasible = any(isinstance(by_count[-1], Predicted) for by_count in outcomes.values())
    return 0 if feasible else 1


def _outcomes(
    network: Network, clusters: Sequence[Cluster], planners: Mapping[str, Planner]
) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {name: [] for name in planners}
    with terminal.progress_bar() as bar:
        task = bar.add_task("", total=len(clusters) * len(planners))
        for cluster in clusters:
            with suppress(Infeasible):
                single(
                    network, cluster
                )  # computed here, so that it does not count as the first strategy's search
            for name, planner in planners.items():
                bar.update(task, description=f"{name} on {len(cluster.devices)}")
                found[name].append(predict(network, cluster, planner))
                bar.advance(task)
    return found


def _json(
    model: str, outcomes: Mapping[str, Sequence[Outcome]], counts: Sequence[int] | None
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model": model,
        "strategies": {name: by_count[-1].as_json() for name, by_count in outcomes.items()},
    }
    if counts is not None:
        found["by_devices"] = {
            name: [{"count": one.count, **one.as_json()} for one in by_count]
            for name, by_count in outcomes.items()
        }
    return found


def _show(model: str, there: int, outcomes: Mapping[str, Sequence[Outcome]]) -> None:
    console = terminal.out()
    known = [
        one for by_count in outcomes.values() for one in by_count if isinstance(one, Predicted)
    ]
    slowest_s = max((predicted.latency_s for predicted in known), default=0.0)
    best_s = min((predicted.latency_s for predicted in known), default=0.0)
    console.print(f"{model} on a cluster of {there}, predicted by the simulator")
    made = terminal.table(
        *("strategy", ">of", ">latency, ms", "", ">speed-up", ">used", ">moved, MB"), ">search, ms"
    )
    for name, by_count in outcomes.items():
        for one in by_count:
            if isinstance(one, Refused):
                made.add_row(name, str(one.count), "-")
                continue
            traffic = one.traffic
            made.add_row(
                name,
                str(one.count),
                terminal.ms(one.latency_s),
                Text(
                    terminal.bar(one.latency_s / slowest_s, BAR),
                    "green" if one.latency_s == best_s else "",
                ),
                f"{one.speedup:.2f}",
                str(len(one.devices)),
                terminal.mb(traffic.scatter + traffic.gather + traffic.halo),
                terminal.ms(one.search_s),
            )
    console.print(made)
    for name, by_count in outcomes.items():
        for one in by_count:
            if isinstance(one, Refused):
                told = Text(f"{name} on {one.count}: {one.reason}", "yellow")
                console.print(told, soft_wrap=not console.is_terminal)
    console.print(
        "speed-up: over the best device alone; search: the time to find and check the plan"
    )
