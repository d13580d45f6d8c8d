"""What can be counted in the sources: lines, loose files, rooms that import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from benchmarks.report import ROOT

ROOMS = ("protos", "models", "worker", "coordinator", "imbrex")
_GENERATED = ("_pb2.py", "_pb2_grpc.py")


def product() -> list[Path]:
    """Every file of Python that is installed and written by hand."""
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    return sorted(file for file in files if not file.name.endswith(_GENERATED))


def product_lines() -> int:
    """Lines of these files."""
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in product())


def loose_files() -> int:
    """Files of `coordinator/` that are in none of its packages."""
    return sum(file.name != "__init__.py" for file in (ROOT / "coordinator").glob("*.py"))


def package_cycles() -> list[list[str]]:
    """Groups of rooms each of which imports, in the end, all others of its group."""
    left = arrows()
    cycles = []
    while (found := _cycle(left)) is not None:
        reach = {name: _reached(left, name) for name in left}
        group = sorted(n for n in left if found in reach[n] and n in reach[found])
        cycles.append(group)
        left = {name: targets - set(group) for name, targets in left.items() if name not in group}
    return cycles


def _cycle(arrows: Mapping[str, set[str]]) -> str | None:
    """A room of a cycle, if there is one."""
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


def arrows() -> dict[str, set[str]]:
    """Rooms and those that they import, as paths. A package is a room, and so is a file that lies
    beside packages of `coordinator`, `models` or `imbrex`.
    """
    files = product()
    modules = {_module(file): file for file in files}
    found: dict[str, set[str]] = {}
    for file in files:
        targets = found.setdefault(_room(file), set())
        for names in _imported(file):
            used = next((modules[name] for name in names if name in modules), None)
            if used is not None:
                targets.add(_room(used))
        targets.discard(_room(file))
    return found


def _module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _room(file: Path) -> str:
    path = file.relative_to(ROOT)
    is_loose = path.parts[0] in ("coordinator", "models", "imbrex") and len(path.parts) == 2
    return str(path.with_suffix("") if is_loose and path.stem != "__init__" else path.parent)


def _imported(file: Path) -> Iterator[tuple[str, ...]]:
    """The names that each import may mean, the innermost first."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name,) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((f"{node.module}.{each.name}", node.module) for each in node.names)
