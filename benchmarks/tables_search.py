"""The search papers' tables, side by side with what was published.

`rows()` of every table are dictionaries for `benchmarks.paper`; run alone, this prints them:

    python -m benchmarks.tables_search [--json]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np

from benchmarks.exhaustive import enumerate_strategies, least_of_all
from benchmarks.training import DATA_PARALLEL, MODEL_PARALLEL, FixedCut, Perceptron, total_bytes
from benchmarks.training_layers import Machine, Training
from coordinator.costs.cluster import Cluster, Device, Link
from coordinator.costs.rates import RateCosts
from coordinator.planning.papers.elimination import CostGraph, Edge, elimination, find_strategy
from coordinator.planning.papers.kcut_search import k_cut
from models.catalogue import catalogue
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from protos.wire.facts import DeviceId

Row = dict[str, Any]

# Network, layers, seconds of the paper's search and of its exhaustive baseline [Jia et al.,
# Table 3]; None: more than 24 hours.
JIA_TABLE_3 = (
    ("lenet5", 6, 0.01, 5.6),
    ("alexnet", 11, 0.02, 7560.0),
    ("vgg16", 21, 0.1, None),
    ("inceptionv3", 102, 0.4, None),
)
NETWORKS = ("lenet5", "alexnet", "vgg16", "inceptionv3")
ENUMERATED = NETWORKS[:2]

# Configuration, transfer, compute, update, and the published total [DeePa, Tables 2 and 3].
DEEPA_TABLE_2 = (
    ("{n=16, c=1}", 0.0, 1.28, 1075.0, "1076"),
    ("{n=1, c=16}", 134.4, 1.28, 0.0, "135.7"),
    ("{n=1, c=4}", 33.6, 5.1, 0.0, "38.7"),
    ("{n=1, c=2}", 16.8, 10.2, 0.0, "27.0"),
    ("{n=1, c=1}", 8.4, 20.4, 0.0, "28.8"),
)
DEEPA_TABLE_3 = (
    ("{n=16, c=1, h=1, w=1}", 0.0, 15.9, 134.4, "150.3"),
    ("{n=8, c=1, h=1, w=1}", 39.2, 31.8, 67.2, "138.2"),
    ("{n=4, c=1, h=1, w=1}", 39.2, 63.7, 33.6, "136.5"),
    ("{n=1, c=1, h=2, w=2}", 39.2, 54.7, 33.6, "127.5"),
    ("{n=2, c=1, h=1, w=1}", 39.2, 127.4, 16.8, "183.4"),
)
DEEPA_PICKS = {"2": "{n=1, c=2}", "3": "{n=1, c=1, h=2, w=2}"}

DEVICES = 4


def jia_table_3(networks: Collection[str] = NETWORKS) -> list[Row]:
    """K, search time and the exhaustive search's answer, on the published training costs; and the
    time of our planner for inference on four devices, with geometry cached.

    The exhaustive search is depth-first and leaves out only what can't be better (`visited`
    partial strategies of `strategies` complete ones); LeNet-5's are also added up one and all.
    """
    rows = []
    for name, layers, published_s, published_baseline_s in JIA_TABLE_3:
        if name not in networks:
            continue
        graph = load_graph(catalogue.load(name).proto)
        costs, precompute_s = _timed(Training(graph, Machine(DEVICES)).cost_graph)
        strategy, search_s = _timed(partial(find_strategy, costs))
        network, cluster = divide(graph), _cluster(DEVICES)
        plan, cold_s = _timed(partial(elimination, network, cluster))
        _, warm_s = _timed(partial(elimination, network, cluster))
        row: Row = {
            "network": name,
            "layers": len(costs.nodes),
            "published_layers": layers,
            "final_nodes": strategy.final_nodes,
            "published_final_nodes": 2,
            "search_s": search_s,
            "published_search_s": published_s,
            "precompute_s": precompute_s,
            "planner_cold_s": cold_s,
            "planner_warm_s": warm_s,
            "planner_notes": list(plan.notes),
        }
        if name in ENUMERATED:
            found, baseline_s = _timed(partial(enumerate_strategies, costs))
            least = least_of_all(costs)
            row |= {
                "exhaustive_equal": bool(np.isclose(found.cost, strategy.cost, rtol=1e-12)),
                "all_added_up": None if least is None else bool(np.isclose(least, strategy.cost)),
                "exhaustive_s": baseline_s,
                "published_exhaustive_s": published_baseline_s,
                "visited": found.visited,
                "strategies": found.strategies,
            }
        rows.append(row)
    return rows


def deepa_table_2() -> list[Row]:
    """The first fully connected layer of AlexNet on 16 devices."""
    return _deepa(DEEPA_TABLE_2, DEEPA_PICKS["2"])


def deepa_table_3() -> list[Row]:
    """The last three convolutions of VGG-16 on 16 devices."""
    return _deepa(DEEPA_TABLE_3, DEEPA_PICKS["3"])


def soybean_section_2_2() -> list[Row]:
    """Five fully connected layers of 300, batch 400, 16 devices, one training step.

    The published numbers count what a device owns already (`counting` "whole"); SOYBEAN's own
    measure does not ("ghost", section 4.2.1).
    """
    perceptron = Perceptron(layers=5, width=300, batch=400)
    named = (
        ("data parallel", [FixedCut(16, DATA_PARALLEL)], 57.6),
        ("model parallel", [FixedCut(16, MODEL_PARALLEL)], 76.8),
        ("hybrid, 4 groups", [FixedCut(4, DATA_PARALLEL), FixedCut(4, MODEL_PARALLEL)], 33.6),
    )
    rows: list[Row] = [
        {
            "parallelism": name,
            "megabytes": total_bytes(perceptron.flow("whole"), cuts) / 1e6,
            "published_megabytes": published,
            "ghost_megabytes": total_bytes(perceptron.flow("ghost"), cuts) / 1e6,
        }
        for name, cuts, published in named
    ]
    (tree, _), search_s = _timed(partial(k_cut, perceptron.flow("ghost"), [1.0] * 16))
    found = tree.total_bytes / 1e6
    rows.append(
        {
            "parallelism": "k-cut",
            "megabytes": None,
            "published_megabytes": None,
            "ghost_megabytes": found,
            "no_worse": all(found <= min(row["megabytes"], row["ghost_megabytes"]) for row in rows),
            "search_s": search_s,
        }
    )
    return rows


TABLES: dict[str, Callable[[], list[Row]]] = {
    "jia_table_3": jia_table_3,
    "deepa_table_2": deepa_table_2,
    "deepa_table_3": deepa_table_3,
    "soybean_section_2_2": soybean_section_2_2,
}


def _deepa(published: tuple[tuple[str, float, float, float, str], ...], picked: str) -> list[Row]:
    """One layer behind a source: t_x on the edge, t_c + t_s on the node [DeePa, Eq. 1]."""
    transfer, compute, update = (np.array([row[k] for row in published]) for k in (1, 2, 3))
    graph = CostGraph({0: np.zeros(1), 1: compute + update}, (Edge(0, 1, transfer[None]),))
    strategy = find_strategy(graph)
    rows = []
    for index, (name, *_, total) in enumerate(published):
        decimals = len(total.partition(".")[2])
        cost = graph.cost({0: 0, 1: index})
        rows.append(
            {
                "configuration": name,
                "transfer": float(transfer[index]),
                "compute": float(compute[index]),
                "update": float(update[index]),
                "total": round(cost, decimals),
                "published_total": float(total),
                "exact": f"{cost:.{decimals}f}" == total,
                "selected": strategy.choice[1] == index,
                "published_selected": name == picked,
            }
        )
    return rows


def _cluster(count: int) -> Cluster:
    link = Link(93.7e6 / 8, message_s=0.001, latency_s=0.002)
    return Cluster(
        tuple(
            Device(DeviceId(f"pi-{i}"), f"pi-{i}", RateCosts(1.85), link, 1.85, 0)
            for i in range(1, count + 1)
        )
    )


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = run()
    return result, time.perf_counter() - start


def _print(tables: dict[str, list[Row]]) -> None:
    for title, rows in tables.items():
        print(f"\n{title}")
        for row in rows:
            shown = {key: value for key, value in row.items() if key != "planner_notes"}
            print("  " + ", ".join(f"{key} {_short(value)}" for key, value in shown.items()))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1e4 else str(value)


if __name__ == "__main__":
    found = {title: table() for title, table in TABLES.items()}
    if "--json" in sys.argv[1:]:
        print(json.dumps(found))
    else:
        _print(found)
