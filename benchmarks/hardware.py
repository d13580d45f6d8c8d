"""What so many Pis of a kind would do with a network, simulated: the page on choosing hardware.

Every kind is a preset of the lab: its numbers, and where they come from, are in
`imbrex/kinds/presets`. Nothing here is measured on a Pi.

    python -m benchmarks.hardware   writes the result, and the example clusters of docs/clusters

The first time, it makes an environment with PyTorch for exports.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.anchors.real import Measured, legend, measured
from benchmarks.compare import duration
from benchmarks.exports.files import exported
from benchmarks.lab.pictures import for_pictures
from benchmarks.report import ROOT, provenance, without_options
from coordinator.planning.planners.auto import auto
from coordinator.planning.single_device import computing_s, whole_works
from imbrex.cli.chart import speedup_svg
from imbrex.kinds.clusters import cluster_of, mixed_text
from imbrex.kinds.presets import load_kind
from imbrex.kinds.software import Software
from models.catalogue.catalogue import load
from models.catalogue.loading import network_of
from models.cut.units import Network
from protos.wire.facts import ONNXRUNTIME

KINDS = {
    "pi3bplus": "Raspberry Pi 3B+, estimated, 250 Mbit/s Ethernet",
    "pi4-gbe": "Raspberry Pi 4, Gigabit Ethernet",
    "pi5-gbe": "Raspberry Pi 5, Gigabit Ethernet",
    "pi5-wifi": "Raspberry Pi 5, Wi-Fi",
}
MODELS = ("digits", "mobilenetv2", "resnet50", "yolov8n", "yolov2", "vgg16")
# The network that people count on for cameras.
DETECTOR = "yolov8n"
COUNTS = (1, 2, 3, 4, 6, 8)
# Whose gain is compared with what software at no cost would allow, on so many devices.
COSTLY, COSTLY_KINDS, COSTLY_COUNTS = ("resnet50", "yolov8n"), ("pi4-gbe", "pi5-gbe"), (4, 8)
# Further ones, which `benchmarks.exports` makes.
EXPORTED = ("yolo11n", "yolov9t")
# Files of docs/clusters: how many of which presets, the host's first.
EXAMPLES = {
    "four-pi3": {"pi3b-ort": 4},
    "four-pi4": {"pi4-gbe": 4},
    "four-pi5": {"pi5-gbe": 4},
    "n100-three-pi4": {"n100": 1, "pi4-gbe": 3},
    "pi5-three-pi4": {"pi5-gbe": 1, "pi4-gbe": 3},
    "two-pi5-two-pi3bplus": {"pi5-gbe": 2, "pi3bplus": 2},
}
RESULT = ROOT / "benchmarks" / "results" / "hardware.json"
IMAGES = ROOT / "docs" / "images"
CLUSTERS = ROOT / "docs" / "clusters"


def example(counts: Mapping[str, int]) -> str:
    """A cluster file of so many devices of each preset, for `plan` and `simulate`."""
    presets = {kind: load_kind(kind) for kind in counts}
    (host, *_) = counts
    source = "that preset says" if len(counts) == 1 else "these presets say"
    head = f"# {', '.join(f'{count} x {kind}' for kind, count in counts.items())}: "
    alike = len(counts) == 1
    others = {
        "pi" if alike else f"{kind.removesuffix('-gbe')}-1": (presets[kind], count - (kind == host))
        for kind, count in counts.items()
    }
    return f"{head}{source} where each number comes from.\n" + mixed_text(presets[host], others)


def software() -> list[dict[str, Any]]:
    """How many times as fast as one alone several are, and would be if neither messages nor tasks
    took time beyond the wire's and the kernels'.
    """
    rows = []
    for model, network in _networks((*COSTLY, *EXPORTED)):
        for kind in COSTLY_KINDS:
            preset = load_kind(kind)
            free = preset.model_copy(update=dict.fromkeys(Software.model_fields, 0.0))
            alone_s = cluster_of(preset, 1).devices[0].costs.block_s(whole_works(network))
            for count in COSTLY_COUNTS:
                gain, without = (
                    alone_s / auto(network, cluster_of(kind, count)).predicted_latency_s
                    for kind in (preset, free)
                )
                row = {"network": model, "kind": kind, "devices": count}
                rows.append(row | {"gain": gain, "without_software": without})
    return rows


def software_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown."""
    lines = ["| network | devices | gain | software at no cost | share |", "|---" * 5 + "|"]
    for row in rows:
        gain, without = row["gain"], row["without_software"]
        devices = f"{row['devices']} x {KINDS[row['kind']]}"
        cells = (f"`{row['network']}`", devices, f"{gain:.2f}", f"{without:.2f}")
        lines.append(f"| {' | '.join(cells)} | {gain / without:.2f} |")
    return "\n".join(lines)


def _networks(models: Iterable[str]) -> Iterator[tuple[str, Network]]:
    """Networks for pictures as a camera's, with their names."""
    for model in models:
        (name,) = map(str, exported([model])) if model in EXPORTED else (model,)
        loaded = load(name)
        yield model, network_of(replace(loaded, sidecar=for_pictures(loaded)))


def simulated() -> dict[str, Any]:
    """Predicted seconds by kind, network and number of devices, for pictures as a camera's."""
    rows: dict[str, Any] = {}
    for model, network in _networks(MODELS):
        for kind in KINDS:
            preset = load_kind(kind)
            plans = {count: auto(network, cluster_of(preset, count)) for count in COUNTS[1:]}
            found = {str(count): plan.predicted_latency_s for count, plan in plans.items()}
            # The whole model on one of them, without any message.
            one = cluster_of(preset, 1)
            (found["1"],) = computing_s(network, one.devices)
            costs = one.devices[0].costs
            found[ONNXRUNTIME] = costs.engines[0].program_s(whole_works(network))
            rows.setdefault(kind, {})[model] = found
    return rows


def table(rows: dict[str, Any]) -> str:
    """Markdown: latency, pictures per second one after the other, and how many times as fast."""
    lines = []
    for kind, title in KINDS.items():
        lines += ["", f"### {title}", ""]
        one, four = rows[kind][DETECTOR]["1"], rows[kind][DETECTOR]["4"]
        lines += [
            f"People detection with YOLOv8n at 640x640 on four of them: {duration(four)} for a "
            f"picture, {_rate(four)}; on one: {duration(one)}, {_rate(one)}.",
            "",
        ]
        head = "".join(f" {count} |" for count in COUNTS[1:])
        lines += [f"| network | one alone |{head}", "|---|---|" + "---|" * len(COUNTS[1:])]
        for model in MODELS:
            found = rows[kind][model]
            alone = found["1"]
            cells = "".join(
                f" {duration(seconds)}<br>{_rate(seconds)}<br>{alone / seconds:.1f}x |"
                for seconds in (found[str(count)] for count in COUNTS[1:])
            )
            lines.append(f"| `{model}` | {duration(alone)}<br>{_rate(alone)} |{cells}")
    return "\n".join(lines)


def _rate(seconds: float) -> str:
    return f"{1 / seconds:.2g} per second" if seconds > 0.1 else f"{1 / seconds:.0f} per second"


def summary(rows: dict[str, Any]) -> str:
    """Markdown: for each kind and network one alone by its fastest engine, and by onnxruntime, each
    with what a real one was measured to take; four together, and the gain. Last, the sources.
    """
    lines = [f"| network | {' | '.join(KINDS.values())} |", "|---" * (1 + len(KINDS)) + "|"]
    for model in MODELS:
        cells = (_cell(rows[kind][model], measured(kind, model)) for kind in KINDS)
        lines.append(f"| `{model}` | {' | '.join(cells)} |")
    shown = [(kind, model) for kind in KINDS for model in MODELS]
    return "\n".join((*lines, "", f"{legend(shown)}."))


def _cell(found: Mapping[str, float], real: Mapping[str, Measured]) -> str:
    alone, four, plain = found["1"], found["4"], found[ONNXRUNTIME]
    is_faster = alone < plain and not math.isclose(alone, plain)
    real_plain = real.get(ONNXRUNTIME, real.get("opencv"))
    times = [_alone(alone, real.get("ncnn") if is_faster else real_plain)]
    if is_faster:
        times.append(_alone(plain, real_plain))
    return f"{' / '.join(times)}, {duration(four)}: {alone / four:.1f}x"


def _alone(seconds: float, real: Measured | None) -> str:
    return duration(seconds) + (f" ({real}, {real.source})" if real else "")


def charts(rows: dict[str, Any]) -> dict[Path, str]:
    """SVG by file."""
    return {
        IMAGES / f"hardware-{kind}.svg": speedup_svg(
            title,
            {
                model: [
                    (count, rows[kind][model]["1"] / rows[kind][model][str(count)])
                    for count in COUNTS
                ]
                for model in MODELS
            },
        )
        for kind, title in KINDS.items()
    }


def main() -> None:
    """Simulates, and writes everything."""
    without_options(__doc__).parse_args()
    document = {"seconds": simulated(), "software": software(), "provenance": provenance()}
    RESULT.write_text(json.dumps(document, indent=1) + "\n")
    for stem, counts in EXAMPLES.items():
        (CLUSTERS / f"{stem}.toml").write_text(example(counts))


if __name__ == "__main__":
    main()
