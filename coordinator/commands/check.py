"""`imbrex check`: cuts a model here, runs all tiles, compares with the whole model."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from coordinator import terminal
from coordinator.costs.rates import RateCosts
from coordinator.planning.aofl import aofl
from coordinator.planning.devices import Cluster, Device, Link
from coordinator.planning.plan import DeviceId
from models import catalogue
from models.check import Blocking, CheckReport
from models.check import check as run_check
from models.graph import load_graph
from models.pixels import with_pixels
from models.units import Network, divide

# The published testbed, by which blocks are chosen: Raspberry Pis 3 on 100 Mbit/s Ethernet.
GFLOPS, BYTES_PER_S, MESSAGE_S, LATENCY_S = 1.85, 93.7e6 / 8, 1e-3, 2e-3
# Equality is checked, not whether a Pi could hold the model.
MEMORY_BYTES = 1 << 40


def check(model: str, grid: tuple[int, int], *, as_json: bool) -> int:
    """Checks a model with a grid of tiles; the exit code says whether it is ok."""
    loaded = catalogue.load(model)
    network = divide(with_pixels(load_graph(loaded.proto, loaded.name), loaded.sidecar))
    planned = planned_blocks(network, grid[0] * grid[1])
    with terminal.progress_bar() as bar:
        task = bar.add_task("", total=1.0)
        report = run_check(
            loaded.proto,
            network,
            grid,
            planned,
            progress=lambda what, share: bar.update(task, description=what, completed=share),
        )
    if as_json:
        terminal.print_json(report.as_json())
    else:
        _show(report, terminal.out())
    return 0 if report.ok else 1


def planned_blocks(network: Network, count: int) -> Blocking:
    """The blocks that AOFL chooses for `count` equal devices of the published kind."""
    return [(block.start, block.stop) for block in aofl(network, equal_cluster(count)).blocks]


def equal_cluster(count: int, stem: str = "pi") -> Cluster:
    """So many devices of the published kind, called pi-1 and so on."""
    link = Link(BYTES_PER_S, MESSAGE_S, LATENCY_S)
    return Cluster(
        tuple(
            Device(
                id=DeviceId(f"{stem}-{number}"),
                name=f"{stem}-{number}",
                costs=RateCosts(GFLOPS),
                link=link,
                speed=GFLOPS,
                memory_bytes=MEMORY_BYTES,
            )
            for number in range(1, count + 1)
        )
    )


def _show(report: CheckReport, console: Console) -> None:
    rows, cols = report.grid
    comparison = report.comparison
    console.print(
        f"{report.model}, every block in {rows} x {cols} tiles, cut in three ways: every unit "
        f"alone, {report.blocks} planned blocks, everything that splits in one block"
    )
    console.print(
        f"{report.partitioned_flop_share:.1%} of the convolution and pooling FLOPs run split"
    )
    for refusal in report.refusals:
        console.print(f"whole: {refusal.layer}: {refusal.reason}")
    verdict = "ok" if report.ok else "DIFFERENT"
    console.print(
        Text(
            f"{verdict}: largest difference {comparison.max_abs_error:.3g}, "
            f"{comparison.max_rel_error:.3g} of the output's largest magnitude "
            f"(limit {report.tolerance:g})",
            "green" if report.ok else "red",
        )
    )
