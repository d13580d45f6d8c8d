"""Every committed result as tables: `python -m benchmarks.tables`.

Writes `benchmarks/results/README.md`, and what stands between the marks of README.md,
docs/performance.md and docs/hardware.md; the rest of those pages is written by people. Nothing is
measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import engine_blocks, engines, hardware, readme
from benchmarks.anchors.real import told
from benchmarks.compare import text
from benchmarks.exports import __main__ as exports
from benchmarks.lab import tables as lab
from benchmarks.paper import TABLES as PAPERS
from benchmarks.report import ROOT, without_options
from protos.errors import BadConfiguration

RESULTS = ROOT / "benchmarks" / "results"
PAGE = RESULTS / "README.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
# Counts of the sources, which tests/test_house.py reads, and the seconds of the tests by directory.
LEFT_OUT = {"durations.json", "house.json"}
_HEAD = """# Results

Written by `python -m benchmarks.tables` from the JSON files in this folder; a test compares them.
No result was measured on a Raspberry Pi. What the figures mean is in
[Performance](../../docs/performance.md), [Choosing hardware](../../docs/hardware.md),
[Networks](../../docs/networks.md), [Faults](../../docs/faults.md) and
[Research](../../docs/research.md).
"""
_ABOUT_LAB = """## The lab

In its tables, *ideal* is the time of one device divided by their number; *redundant* computing what
other devices compute, too; *slower kernels* the additional time per operation on small tiles; the
last three are waiting.
"""
_OLDER = "Presets were older: a Pi 4 computed 12 GFLOP/s, a Pi 5 40, both by onnxruntime alone."
_NO_COLUMNS = {"asked", "cluster", "errors", "ok", "provenance", "statuses"}
_UNIT = re.compile(r"(?<!per)_(s|ms|mb|percent)$")


@dataclass(frozen=True, slots=True)
class Section:
    """A result: its file, what it is about, and the table of its content."""

    file: str
    title: str
    about: str
    table: Callable[[Mapping[str, Any]], str]


def columns(*keys: str) -> Callable[[Mapping[str, Any]], str]:
    """A table of the rows under each key; without any, of the whole content as one row."""

    def text_of(result: Mapping[str, Any]) -> str:
        return "\n\n".join(_columns(result[key]) for key in keys) if keys else _columns(result)

    return text_of


def _columns(rows: Any) -> str:
    if not isinstance(rows, Mapping):
        return markdown([flat(row) for row in rows])
    if all(isinstance(row, Mapping) for row in rows.values()):
        return markdown([{"": name, **flat(row)} for name, row in rows.items()])
    return markdown([flat(rows)])


def flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Cells by heading: of dictionaries within dictionaries one for each value, of a list of
    dictionaries the largest of each number.
    """
    cells: dict[str, Any] = {}
    for key, value in row.items():
        heading = _UNIT.sub(r", \1", key).replace("_", " ")
        name = f"{before} {heading}".strip()
        if key in _NO_COLUMNS or value == []:
            continue
        if isinstance(value, Mapping):
            cells |= flat(value, name)
        elif isinstance(value, list) and isinstance(value[0], Mapping):
            for inner in sorted(value[0]):
                numbers = [one[inner] for one in value if one.get(inner) is not None]
                cells |= flat({inner: max(numbers)}, f"most {name}") if numbers else {}
        else:
            cells[name] = value
    return cells


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of Markdown; a row without a heading's cell has an empty one. A single row stands
    upright.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    if len(rows) == 1:
        lines = [["", ""], *([name, text(rows[0][name])] for name in names)]
    else:
        lines = [names, *([text(row.get(name)) for name in names] for row in rows)]
    rule = "|---" * len(lines[0]) + "|"
    first, *rest = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([first, rule, *rest])


def of_papers(result: Mapping[str, Any]) -> str:
    """What `benchmarks.paper` prints."""
    parts = (PAPERS[name][1](result) for name, result in result.items() if name in PAPERS)
    return "\n\n".join(f"```text\n{part}\n```" for part in parts)


def of_homes(result: Mapping[str, Any]) -> str:
    """Each network in each home, in the devices' own time."""
    return markdown(
        [
            {
                "home": found["home"],
                "network": network,
                "fastest alone, ms": 1e3 * found["scale"] * measured["baseline"]["latency_s"],
                "its engine": measured["baseline"]["engine"],
                "onnxruntime alone, ms": 1e3
                * found["scale"]
                * measured["baseline"]["onnxruntime_s"],
                "a real one": told(next(iter(hardware.EXAMPLES[found["home"]])), network),
                "auto, ms": 1e3 * found["scale"] * measured["strategies"]["auto"]["latency_s"],
                "gain": measured["strategies"]["auto"]["speedup"],
            }
            for found in result["homes"]
            for network, measured in found["models"].items()
        ]
    )


SECTIONS = (
    Section(
        "alone.json",
        "One emulated device alone",
        "What its preset says, and how far the lab's device is from that: the whole network as one "
        "program, and unit by unit.",
        columns("networks"),
    ),
    Section(
        "mixed.json",
        "A mixed home in the lab",
        "`auto` beside the fastest device alone by its fastest engine, by turns.",
        of_homes,
    ),
    Section(
        "mixed-n100.json",
        "Another mixed home in the lab",
        "A mini PC (N100) with three Pi 4s.",
        of_homes,
    ),
    *(Section(path.name, "", "", lab.document) for path in sorted(RESULTS.glob("speedup-*.json"))),
    Section(
        "exports/speedup-pi4-gbe-switch-4.json",
        "Exported networks in the lab",
        "Four emulated Pi 4s, in scaled time: four times as long as on real ones. With *likely "
        f"boxes*, a client asks for predictions instead of raw outputs. {_OLDER}",
        lambda result: exports.lab_table(result["models"]),
    ),
    Section(
        "exports/simulated.json",
        "Exported networks, simulated",
        "*Split*: the share of the FLOPs in units of which no device computes more than 60 %. "
        "*Error*: the largest difference from the whole network, relative to the largest "
        "magnitude, with everything cut in four. *MB moved*: of four Pi 4s. *Planning*: the "
        f"longest search of `auto`, in CPU seconds. {_OLDER}",
        lambda result: exports.table(result["rows"]),
    ),
    Section(
        "hardware.json",
        "Kinds of Raspberry Pi, simulated",
        "Predicted for `auto`: latency, pictures per second one after the other, gain. Last, how "
        "much is left of the gain that messages and tasks at no cost would allow.",
        lambda result: "\n".join(
            (hardware.table(result["seconds"]), "", hardware.software_table(result["software"]))
        ),
    ),
    Section(
        "never_slower.json",
        "Is `auto` ever slower than one device?",
        f"Random pairs of a network and a cluster, in the lab. {_OLDER}",
        columns("samples"),
    ),
    Section(
        "engines.json",
        "OpenVINO and onnxruntime",
        "Whole networks, the engines in turn; medians. The last column is the gain of "
        "`engine = auto`.",
        lambda result: engines.table(result["networks"]),
    ),
    Section(
        "engines-fp16.json",
        "The same with `precision = fp16`",
        "",
        lambda result: engines.table(result["networks"], result["precision"]),
    ),
    Section(
        "engines-as-on-arm.json",
        "ncnn and onnxruntime, block by block",
        "In the blocks of a plan for four Pi 4s; onnxruntime without its blocked layout.",
        lambda result: engine_blocks.markdown(result["networks"]),
    ),
    Section(
        "engines-as-on-arm-exports.json",
        "The same for exported networks",
        "What `benchmarks.zoo` adds to the catalogue, and `benchmarks.exports` makes.",
        lambda result: engine_blocks.markdown(result["networks"]),
    ),
    Section(
        "loading.json",
        "Preparing the programs of a plan",
        "Of a plan for four Pi 4s, with onnxruntime and then with ncnn; and halos that another "
        "process sends meanwhile, in milliseconds.",
        lambda result: markdown(
            [
                {
                    "network": row["network"],
                    "programs of ncnn": row["programs"],
                    **{f"{engine}, s": round(s, 2) for engine, s in row["preparing_s"].items()},
                    "times": round(row["times"], 2),
                    **{
                        f"p99 beside {engine}": round(ms["p99"], 2)
                        for engine, ms in row["halo_ms"].items()
                    },
                }
                for row in result["networks"]
            ]
        ),
    ),
    Section(
        "heights.json",
        "OpenVINO with open heights",
        "Programs compiled for one height, and for any.",
        columns("networks"),
    ),
    Section(
        "int8.json",
        "ResNet-50 in 8 bits",
        "Four real workers, with plans for Pi 3s of one core; first both networks whole, in "
        "onnxruntime.",
        lambda result: "\n\n".join(
            (
                columns("whole")(result),
                markdown(
                    [
                        {"strategy": row["strategy"], "network": cuts.replace("_", " "), **flat(of)}
                        for row in result["rows"]
                        for cuts, of in row.items()
                        if isinstance(of, Mapping)
                    ]
                ),
            )
        ),
    ),
    Section("digits-int8.json", "`digits` in 8 bits", "By `imbrex models quantise`.", columns()),
    Section(
        "sharded.json",
        "Networks larger than a device",
        "Each worker in a cgroup that limits its memory; *loss*: after one of them was killed.",
        columns("cases"),
    ),
    Section(
        "sharded-openvino.json",
        "OpenVINO within a gigabyte",
        "A worker in a cgroup.",
        columns("cases"),
    ),
    Section(
        "shallow.json",
        "A cheap switch",
        "Ports that hold back 64 KB, and eight devices that send at the same time.",
        columns(),
    ),
    Section("chaos-lab.json", "Ten minutes of faults", "Devices and cables; the kinds.", columns()),
    Section(
        "chaos-engines.json",
        "Ten minutes of faults, two engines",
        "Every other device with ncnn, all at full speed.",
        columns(),
    ),
    Section(
        "chaos-pair.json",
        "Ten minutes of faults, two coordinators",
        "Devices, coordinators, their machines and the store.",
        columns(),
    ),
    Section(
        "pair.json",
        "The loss of a coordinator",
        "*Takeover*: how long the slowest request took that was open at the fault: median, worst.",
        columns("parts", "store"),
    ),
    Section(
        "frigate.json",
        "Frigate's crops",
        "YOLOv8n at 320x320 on four emulated Pi 4s, one of which is killed halfway.",
        columns(),
    ),
    Section("many.json", "64 workers on one machine", "", columns()),
    Section(
        "search-curve.json",
        "How long planning takes",
        "CPU seconds by units (a chain of convolutions) and by devices (ResNet-50).",
        columns("curve"),
    ),
    Section("tls.json", "TLS between daemons", "Two workers on loopback.", columns("actions")),
    Section(
        "nodes.json",
        "onnx's models of single operators",
        "How many are exact, rounded, refused; the reasons of the refusals.",
        columns("counts", "refusals"),
    ),
    *(
        Section(
            f"{name}.json",
            f"Messages: `{name}`",
            "CPU time at either end, and as a share of gRPC's.",
            lambda result: markdown(
                [
                    {"": transport, **flat(row)}
                    for transport, rows in result["transports"].items()
                    for row in rows
                ]
            ),
        )
        for name in ("messages", "messages-host")
    ),
    Section("handover.json", "From one task to the next", "Between two workers.", columns("sizes")),
    Section("kernels.json", "Packed weights on tiles", "", columns("rows")),
    Section("kernels-additions.json", "Additions apart from convolutions", "", columns("rows")),
    Section(
        "pauses.json",
        "Pinned threads after a pause",
        "",
        lambda result: markdown(
            [
                {"network": row["network"], "busy core": row["beside_a_busy_core"], **flat(pause)}
                for row in result["networks"]
                for pause in row["pauses"]
            ]
        ),
    ),
    Section("paper.json", "Tables and figures of papers", "Beside what was published.", of_papers),
)


def page() -> str:
    """The page of results."""
    parts = [_HEAD, _ABOUT_LAB]
    for section in SECTIONS:
        result = read(section.file)
        title = section.title or lab.heading(result)
        parts += [f"## {title}", "", _source(section.file, result), ""]
        parts += [section.about, ""] if section.about else []
        parts += [section.table(result).strip("\n"), ""]
    return "\n".join(parts)


def _source(file: str, result: Mapping[str, Any]) -> str:
    """Where a result is from."""
    models = result.get("models")
    if isinstance(models, Mapping):  # of the lab, each network in a run of its own
        result = next(iter(models.values()))
    run = result["provenance"]
    where = f"{run['cpu']}, {run['cores']} cores, Python {run['python']}"
    return f"`{file}`: `{run['command']}` at {run['commit']}; {where}."


def pages() -> dict[Path, str]:
    """Every page with the tables of the committed results."""
    rows = read("hardware.json")["seconds"]
    labs = [read(section.file) for section in SECTIONS if section.file.startswith("speedup-")]
    within = {
        ROOT / "README.md": readme.table(),
        ROOT / "docs" / "performance.md": "\n".join(lab.summary(labs)),
        ROOT / "docs" / "hardware.md": hardware.summary(rows),
    }
    return {PAGE: page()} | {
        path: between_marks(path.read_text(), table) for path, table in within.items()
    }


def between_marks(page: str, text: str) -> str:
    """The page with this text between its marks.

    Raises:
        BadConfiguration: it has no marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BadConfiguration(
            cause=f"the page has no {BEGIN} and {END}", cure="Put both where the tables belong"
        )
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def read(file: str) -> dict[str, Any]:
    """A committed result."""
    document: dict[str, Any] = json.loads((RESULTS / file).read_text())
    return document


def main() -> None:
    """Writes the pages, and the pictures of docs/hardware.md."""
    without_options(__doc__).parse_args()
    for path, content in pages().items():
        path.write_text(content)
    for path, svg in hardware.charts(read("hardware.json")["seconds"]).items():
        path.write_text(svg)


if __name__ == "__main__":
    main()
