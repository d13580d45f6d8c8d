"""The rules of the house: fresh stubs, imports one way, nothing that belongs elsewhere."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.house.__main__ import counted
from benchmarks.house.counts import OPTIONAL, arrows, nodes, package_cycles, product
from benchmarks.house.names import callables_handed_over, importers_of_optional_rooms

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "architecture.md"
PURE = (
    "models/tensors/boxes.py",
    "models/operators/geometry.py",
    "models/graph/graph.py",
    "models/rewrite",
    "models/cut/tiles.py",
    "models/tensors/windows.py",
    "models/operators/work.py",
    "models/operators",
    "models/cut/units.py",
    "models/cut/cutter.py",
    "coordinator/tasks",
    *(
        f"coordinator/plans/{name}.py"
        for name in (*("book", "entries", "grouping", "sent_plan", "steps", "switching"),)
    ),
    "coordinator/costs",
    "coordinator/planning",
    "coordinator/devices/membership.py",
    "coordinator/devices/withheld.py",
    "coordinator/devices/expected.py",
    "coordinator/devices/lone_transfers.py",
    "coordinator/devices/loop_waits.py",
    "coordinator/measuring/queues.py",
    "coordinator/audit/case.py",
    "coordinator/audit/job.py",
    "coordinator/audit/sampling.py",
    "coordinator/audit/verdict.py",
    "coordinator/doctor/checks.py",
    "coordinator/doctor/findings.py",
    "coordinator/doctor/machines.py",
    "coordinator/doctor/networks.py",
    "worker/tasks",
)
# Files of which only these classes are pure.
PURE_CLASSES = {"coordinator/requests/admission.py": ("Throughput", "AdmissionQueue")}
# The one file that imports or names each optional room.
REGISTRIES = {
    "coordinator/planning/papers": "coordinator/planning/planners/candidates.py",
    "coordinator/several": "coordinator/trust/open_state.py",
    "coordinator/serving/deepstack": "coordinator/serving/app.py",
    "coordinator/serving/frigate": "coordinator/serving/app.py",
    "coordinator/serving/oip": "coordinator/serving/app.py",
    "coordinator/serving/page": "coordinator/serving/app.py",
    "imbrex/demo": "imbrex/cli/app.py",
    "imbrex/watch": "imbrex/cli/watching.py",
    "models/quantise": "imbrex/cli/quantising.py",
    "models/zoo": "models/catalogue/catalogue.py",
}
# Why each callable is handed to a constructor, a field or `start`.
HANDED_OVER = {
    "coordinator/devices/discovery.py: Discovery(found)": "zeroconf calls back; the pool steps",
    "coordinator/devices/discovery.py: Discovery(is_in_use)": "asked when a second address appears",
    "coordinator/planning/geometry/layouts.py: Computing(find)": "work is found when first needed",
    "coordinator/planning/plugin_errors.py: BrokenPlanner(planner)": "the planner that it names",
    "coordinator/planning/search/improve.py: Search(allows)": "a planner's own rule for a draft",
    "coordinator/serving/common/body.py: Intake(answered)": "the middleware knows no coordinator",
    "imbrex/cli/plan.py: Situation(planner)": "a plan together with the planner that made it",
    "imbrex/watch/video_frames.py: Frame(read)": "only frames that are sent are encoded",
    "models/check/check.py: _Split(fault)": "the fault to plant in a tile's inputs",
    "models/cut/units.py: Network(ranges)": "calibration runs the network, so only for 8 bits",
    "models/onnx_file/stored.py: StoredModel(read)": "weights are read once memory is allocated",
    "models/run/reference.py: ProgramRunner(altered)": "the effect of fp16 is measured by a change",
    "models/run/run_tiles.py: TileRun(fault)": "the fault to plant in a tile's inputs",
    "models/tensors/wire.py: Coded(constant)": "each graph that is written stores its constants",
    "worker/compute/compute.py: ComputeJob(begin)": "computing knows neither programs nor probes",
    "worker/compute/compute.py: ComputeJob(ended)": "the computing thread takes the next job",
    "worker/engines/base.py: Ready(compute)": "an engine's run, set up in another thread",
    "worker/peers/listener.py: DataListener(deliver)": "peers lie below the exchange",
    "worker/peers/neighbours.py: Neighbours(on_failure)": "peers lie below the exchange",
    "worker/peers/readers.py: Readers(read)": "threads for streams, whatever is read of them",
}
PROTOS = ("protos/imbrex.proto", "protos/inference.proto")
EDGES = {
    *("asyncio", "grpc", "socket", "structlog", "logging", "time", "threading", "pathlib"),
    "importlib",
}


def sources(where: str) -> list[Path]:
    path = ROOT / where
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def imports(file: Path) -> set[str]:
    found = set()
    for node in nodes(file):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def rows_of_rooms() -> list[list[str]]:
    """The table of rooms in the documentation, from the top."""
    cells = re.findall(r"^\| (`.*?`) \| ", TABLE.read_text().split("\n## ")[1], re.MULTILINE)
    return [re.findall(r"`([\w/]+)`", cell) for cell in cells]


def uses() -> dict[str, set[str]]:
    """The rooms of the table, and those that each imports."""
    rooms = {room: -row for row, rooms in enumerate(rows_of_rooms()) for room in rooms}
    found: dict[str, set[str]] = {}
    for package, targets in arrows().items():
        if targets:
            own = room_of(package, rooms)
            found.setdefault(own, set()).update(room_of(each, rooms) for each in targets)
            found[own].discard(own)
    return found


def test_imports_point_down_as_the_table_of_rooms_says() -> None:
    height = {room: -row for row, rooms in enumerate(rows_of_rooms()) for room in rooms}
    pairs = [(own, target) for own, targets in uses().items() for target in targets]
    for own, target in pairs:
        apart = {own.split("/")[0], target.split("/")[0]} == {"coordinator", "worker"}
        assert not apart, f"{own} imports {target}"
        assert height[target] < height[own], f"{own} imports {target}"
    assert len(pairs) > 100


def room_of(package: str, rooms: Mapping[str, int]) -> str:
    """The innermost room of the table that a package or loose file is in."""
    while package not in rooms:
        assert "/" in package, f"{package} is in no room of {TABLE.name}"
        package = package.rpartition("/")[0]
    return package


def test_no_rooms_import_each_other() -> None:
    assert package_cycles() == []


def test_only_registries_import_optional_rooms() -> None:
    assert REGISTRIES.keys() == set(OPTIONAL)
    expected = sorted(f"{registry} imports {room}" for room, registry in REGISTRIES.items())
    assert importers_of_optional_rooms() == expected


def test_product_never_imports_the_benchmarks() -> None:
    for file in product():
        assert not any(name.startswith("benchmarks") for name in imports(file)), file


@pytest.mark.parametrize("where", PURE)
def test_the_pure_core_has_no_edges(where: str) -> None:
    files = sources(where)
    assert files
    for file in files:
        names = {name.split(".")[0] for name in imports(file)}
        assert not names & EDGES, f"{file.relative_to(ROOT)} imports {names & EDGES}"
        waits = [each for each in nodes(file) if isinstance(each, ast.AsyncFunctionDef)]
        assert not waits, f"{file.relative_to(ROOT)} waits in {waits[0].name}"


def impure_names(module: ast.Module, owner: str) -> list[str]:
    """What a class uses of the edges that its file imports, and its methods that wait."""
    edges = {"open"}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            edges |= {
                alias.asname or alias.name.split(".")[0]
                for alias in node.names
                if alias.name.split(".")[0] in EDGES
            }
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in EDGES:
            edges |= {alias.asname or alias.name for alias in node.names}
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    within = list(ast.walk(classes[owner]))
    names = {node.id for node in within if isinstance(node, ast.Name)}
    waits = {node.name for node in within if isinstance(node, ast.AsyncFunctionDef)}
    return sorted(names & edges | waits)


@pytest.mark.parametrize(
    ("file", "owner"), [(file, owner) for file, owners in PURE_CLASSES.items() for owner in owners]
)
def test_pure_classes_use_no_edges_of_their_file(file: str, owner: str) -> None:
    assert impure_names(ast.parse((ROOT / file).read_text()), owner) == []


def test_edges_used_within_a_class_are_found() -> None:
    source = """
import asyncio, time as clock
from pathlib import Path
class Pure:
    def f(self, now): return now
class Impure:
    def f(self): return clock.monotonic(), Path("a"), open("b")
    async def g(self): await asyncio.sleep(1)
"""
    assert impure_names(ast.parse(source), "Pure") == []
    assert impure_names(ast.parse(source), "Impure") == ["Path", "asyncio", "clock", "g", "open"]


def test_every_callable_handed_over_has_a_reason() -> None:
    assert set(callables_handed_over()) == HANDED_OVER.keys()
    assert len(HANDED_OVER) <= 20


def test_no_count_of_the_house_gets_worse() -> None:
    """Sizes may drift by 0.5 %, so that a sentence or a fix needs no new record."""
    stored = json.loads((ROOT / "benchmarks/results/house.json").read_text())
    counts, _ = counted()
    sizes = ("lines", "core_lines", "statements", "words_of_pages")
    allowed = {name: stored[name] * (1.005 if name in sizes else 1) for name in counts}
    worse = {name: (stored[name], count) for name, count in counts.items() if count > allowed[name]}
    assert not worse, "smaller is better; if these have to grow: python -m benchmarks.house -o ..."


def test_only_daemons_see_the_stubs() -> None:
    for file in sources("models"):
        assert not any("imbrex_pb2" in name for name in imports(file)), file


def test_stubs_are_fresh(tmp_path: Path) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", "-I.", *PROTOS),
            *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"),
            f"--grpc_python_out={tmp_path}",
        ],
        cwd=ROOT,
        check=True,
    )
    stems = [Path(each).stem for each in PROTOS]
    for name in (stem + end for stem in stems for end in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")):
        fresh = (tmp_path / "protos" / name).read_text()
        assert fresh == (ROOT / "protos" / name).read_text(), f"{name} is stale: run `make proto`"
