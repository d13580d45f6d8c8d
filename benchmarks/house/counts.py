"""What can be counted in the sources: lines, loose files, rooms that import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from benchmarks.report import ROOT

ROOMS = ("protos", "models", "worker", "coordinator", "imbrex")
# What can be deleted: nothing imports or names it but one registry.
OPTIONAL = (
    "coordinator/planning/papers",
    "coordinator/several",
    "coordinator/serving/oip",
    "coordinator/serving/deepstack",
    "coordinator/serving/frigate",
    "coordinator/serving/page",
    "models/zoo",
    "models/quantise",
    "imbrex/watch",
    "imbrex/demo",
)
_GENERATED = ("_pb2.py", "_pb2_grpc.py")


def parsed(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return _parsed(file.read_text(encoding="utf-8"))


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def nodes(file: Path) -> tuple[ast.AST, ...]:
    """Everything in the syntax tree of a file."""
    return _walked(parsed(file))


@cache
def _walked(module: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(module))


def product() -> list[Path]:
    """Every file of Python that is installed and written by hand."""
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    return sorted(file for file in files if not file.name.endswith(_GENERATED))


def product_lines() -> int:
    """Lines of these files."""
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in product())


def core_lines() -> int:
    """Lines without the optional rooms."""
    optional = tuple(f"{room}/" for room in OPTIONAL)
    return sum(
        len(file.read_text(encoding="utf-8").splitlines())
        for file in product()
        if not str(file.relative_to(ROOT)).startswith(optional)
    )


def page_words() -> int:
    """Words of the documentation's pages, without records of decisions."""
    docs = ROOT / "docs"
    pages = (page for page in docs.rglob("*.md") if docs / "adr" not in page.parents)
    return sum(len(page.read_text().split()) for page in pages)


def loose_files() -> dict[str, int]:
    """Files of these rooms that are in none of their packages."""
    return {
        room: sum(file.name != "__init__.py" for file in (ROOT / room).glob("*.py"))
        for room in ("models", "worker", "coordinator")
    }


def package_cycles() -> list[list[str]]:
    """Groups of rooms each of which imports, in the end, all others of its group."""
    return circles(arrows())


def circles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of names each of which leads, in the end, to all others of its group."""
    left = dict(arrows)
    cycles = []
    while (name := _cycle(left)) is not None:
        reach = {start: _reached(left, start) for start in left}
        group = sorted(start for start in left if name in reach[start] and start in reach[name])
        cycles.append(group)
        left = {own: targets - set(group) for own, targets in left.items() if own not in group}
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
    beside packages, but in `protos`.
    """
    rooms: dict[str, set[str]] = {}
    for file, targets in imports(product()).items():
        own = _room(file)
        rooms.setdefault(own, set()).update(map(_room, targets))
        rooms[own].discard(own)
    return rooms


def imports(files: Sequence[Path]) -> dict[Path, set[Path]]:
    """These files and those of them that they import, wherever in the file that is."""
    modules = {module_name(file): file for file in files}
    targets = {file: {_found(names, modules) for names in _imported(file)} for file in files}
    return {
        file: {target for target in found if target} - {file} for file, found in targets.items()
    }


def _found(names: Sequence[str], modules: Mapping[str, Path]) -> Path | None:
    return next((modules[name] for name in names if name in modules), None)


def module_name(file: Path) -> str:
    """How it is imported."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _room(file: Path) -> str:
    path = file.relative_to(ROOT)
    is_loose = len(path.parts) == 2 and path.parts[0] != "protos"
    return str(path.with_suffix("") if is_loose and path.stem != "__init__" else path.parent)


def _imported(file: Path) -> Iterator[tuple[str, ...]]:
    """The names that each import may mean, the innermost first."""
    for node in nodes(file):
        if isinstance(node, ast.Import):
            yield from ((alias.name,) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((f"{node.module}.{alias.name}", node.module) for alias in node.names)
