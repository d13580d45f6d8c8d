"""The rules of the house: fresh stubs, imports one way, nothing that belongs elsewhere."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("protos", "models", "worker", "coordinator")
MAY_IMPORT = {
    "protos": set(),
    "models": {"protos"},
    "worker": {"protos", "models"},
    "coordinator": {"protos", "models"},
}
PURE = (
    "models/boxes.py",
    "models/geometry.py",
    "models/operators",
    "models/units.py",
    "models/cutter.py",
    "coordinator/planning",
    "coordinator/execution/scheduler.py",
    "coordinator/execution/tasks.py",
    "coordinator/cluster/membership.py",
    "worker/tasks.py",
)
PROTOS = ("protos/imbrex.proto", "protos/inference.proto")
EDGES = {"asyncio", "grpc", "socket", "structlog", "logging", "time", "threading"}


def sources(where: str) -> list[Path]:
    path = ROOT / where
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_imports_run_one_way(room: str) -> None:
    for file in sources(room):
        rooms = {name.split(".")[0] for name in imports(file)} & {*ROOMS, "imbrex", "benchmarks"}
        assert rooms <= MAY_IMPORT[room] | {room}, f"{file.relative_to(ROOT)} imports {rooms}"


@pytest.mark.parametrize("where", PURE)
def test_the_pure_core_has_no_edges(where: str) -> None:
    files = sources(where)
    assert files
    for file in files:
        names = {name.split(".")[0] for name in imports(file)}
        assert not names & EDGES, f"{file.relative_to(ROOT)} imports {names & EDGES}"


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
