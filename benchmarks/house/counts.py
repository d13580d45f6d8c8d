"""What can be counted in the sources: lines, loose files, packages that import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from benchmarks.report import ROOT

ROOMS = ("protos", "models", "worker", "coordinator", "imbrex", "imbrex.py")
_GENERATED = ("_pb2.py", "_pb2_grpc.py")


def product() -> list[Path]:
    """Every file of Python that is installed and written by hand."""
    roots = [ROOT / room for room in ROOMS]
    files = [file for root in roots for file in ([root] if root.is_file() else root.rglob("*.py"))]
    return sorted(file for file in files if not file.name.endswith(_GENERATED))


def product_lines() -> int:
    """Lines of these files."""
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in product())


def loose_files() -> int:
    """Files of `coordinator/` that are in none of its packages."""
    return sum(file.name != "__init__.py" for file in (ROOT / "coordinator").glob("*.py"))


def package_cycles() -> list[list[str]]:
    """Groups of packages each of which imports, in the end, all others of its group."""
    arrows = _arrows()
    cycles = []
    while (found := _cycle(arrows)) is not None:
        reach = {name: _reached(arrows, name) for name in arrows}
        group = sorted(n for n in arrows if found in reach[n] and n in reach[found])
        cycles.append(group)
        arrows = {
            name: targets - set(group) for name, targets in arrows.items() if name not in group
        }
    return cycles


def _cycle(arrows: Mapping[str, set[str]]) -> str | None:
    """A package of a cycle, if there is one."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return str(error.args[1][0])
    return None


def _reached(arrows: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        fresh = arrows.get(ahead.pop(), set()) - seen
        seen |= fresh
        ahead += fresh
    return seen


def _arrows() -> dict[str, set[str]]:
    """Packages, as folders, and those that they import; a package may use itself."""
    files = product()
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files}
    arrows: dict[str, set[str]] = {}
    for file in files:
        own = _package(file)
        targets = arrows.setdefault(own, set())
        for name in _imported(file):
            found = modules.get(name) or modules.get(f"{name}.__init__")
            if found is not None and _package(found) != own:
                targets.add(_package(found))
    return arrows


def _package(file: Path) -> str:
    return str(file.parent.relative_to(ROOT)) if file.parent != ROOT else file.stem


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
