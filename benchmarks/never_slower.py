"""`auto` beside one device alone, on seeded samples of the lab's clusters and the catalogue.

    python -m benchmarks.never_slower --json              24 samples, about an hour and a half
    python -m benchmarks.never_slower --clusters 1 --networks 2 --seed 7
    python -m benchmarks.never_slower --folder samples    continues where it was interrupted

Each cluster is a preset, a medium and 2 to 8 devices by chance; each of its networks is asked for
in turn with the whole network on one device alone, and every answer is compared. The exit code is
1 where `auto` takes over 3 % longer, or an answer differs.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from benchmarks.lab.bench import Setting
from benchmarks.lab.network import require_tools
from benchmarks.report import command_line, emit
from benchmarks.speedup import LEAST_REPEAT, Wish, run
from coordinator.costs import Medium
from imbrex.kinds.presets import names as presets
from models.catalogue import catalogue
from models.check.check import TOLERANCE

MOST_DEVICES = 8
NOISE = 0.03
STRATEGY = "auto"


def drawn(clusters: int, networks: int, seed: int) -> Iterator[tuple[Setting, tuple[str, ...]]]:
    """Clusters, each with networks."""
    rng = random.Random(seed)
    for _ in range(clusters):
        setting = Setting(
            rng.choice(presets()), rng.randint(2, MOST_DEVICES), rng.choice(get_args(Medium))
        )
        yield setting, tuple(rng.sample(catalogue.names(), networks))


def measure(setting: Setting, networks: tuple[str, ...], folder: Path) -> list[dict[str, Any]]:
    """One cluster's samples; those in `folder` count."""
    document = run(setting, Wish(networks, (STRATEGY,), LEAST_REPEAT, folder, resume=True))
    return [
        {
            "preset": document["preset"],
            "medium": document["medium"],
            "devices": document["devices"],
            "network": network,
            "alone_s": measured["baseline"]["latency_s"],
            **{
                key: measured["strategies"][STRATEGY][key]
                for key in ("latency_s", "speedup", "devices_used", "max_rel_error")
            },
        }
        for network, measured in document["models"].items()
        if network in networks and "speedup" in measured["strategies"][STRATEGY]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; the exit code."""
    parser = command_line(__doc__)
    parser.add_argument("--clusters", type=int, default=8)
    parser.add_argument("--networks", type=int, default=3, help="of each cluster")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keeps what was measured")
    chosen = parser.parse_args(arguments)
    require_tools()
    with tempfile.TemporaryDirectory() as temporary:
        samples = [
            sample
            for setting, networks in drawn(chosen.clusters, chosen.networks, chosen.seed)
            for sample in measure(setting, networks, chosen.folder or Path(temporary))
        ]
    slower = [sample for sample in samples if sample["speedup"] < 1 - NOISE]
    wrong = [sample for sample in samples if sample["max_rel_error"] > TOLERANCE]
    result = {"samples": samples, "slower": len(slower), "wrong": len(wrong)}
    lines = [
        f"{sample['preset']}, {sample['medium']}, {sample['devices']} devices: {sample['network']} "
        f"{sample['speedup']:.2f}x on {sample['devices_used']}"
        for sample in samples
    ]
    lines.append(f"{len(samples)} samples: {len(slower)} slower, {len(wrong)} wrong")
    emit(result, chosen, "\n".join(lines))
    return 1 if slower or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
