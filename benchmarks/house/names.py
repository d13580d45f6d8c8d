"""What can be counted in the syntax of the sources: names with two meanings, callables that are
handed over, protocols of one class, circles of imports, and what tests read of others' insides.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from benchmarks.house.counts import (
    OPTIONAL,
    circles,
    imports,
    module_name,
    nodes,
    parsed,
    product,
)
from benchmarks.report import ROOT

# Each has one meaning: what answers look like, what speaks HTTP, the settings of a process, its
# errors, what may happen to an event machine, a process that stays, what it does until it ends.
_SHARED_STEMS = frozenset(
    {"__init__", "__main__", "answers", "daemon", "errors", "events", "http", "run", "settings"}
)
# Files named after commands, routes and interfaces, each of which is what its user asks for.
_AFTER_WHAT_IS_ASKED = ("imbrex/cli/", "coordinator/serving/")
# What a clock or a source of chance returns.
_NUMBERS = frozenset({"float", "int"})
_TABLES = frozenset({"Mapping", "dict", "Sequence", "tuple", "list"})
_HANDED_TO = frozenset({"__init__", "start"})
_OF_NAMED_TUPLES = {"_asdict", "_replace"}
# Their instances are the rows of a table: of operators, of calls, of the catalogue, of candidates.
_ROWS_OF_TABLES = frozenset({"Operator", "Call", "Entry", "Candidate"})


def statements() -> int:
    """Statements of the product, docstrings among them."""
    return sum(isinstance(node, ast.stmt) for file in product() for node in nodes(file))


def defined_twice() -> dict[str, list[str]]:
    """Public classes and type aliases of more than one module, and these modules."""
    places = defaultdict(set)
    for file in product():
        for name in _definitions(parsed(file)):
            places[name].add(_path(file))
    return {name: sorted(files) for name, files in sorted(places.items()) if len(files) > 1}


def stems_twice() -> dict[str, list[str]]:
    """Names of files that lie in more than one place, and these places, without the words that
    interfaces, daemons and event machines share, and without files that are named after a command
    or a part of an interface.
    """
    places = defaultdict(set)
    for file in product():
        path = _path(file)
        if file.stem not in _SHARED_STEMS and not path.startswith(_AFTER_WHAT_IS_ASKED):
            places[file.stem].add(path)
    return {stem: sorted(files) for stem, files in sorted(places.items()) if len(files) > 1}


def _definitions(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id if "TypeAlias" in ast.unparse(node.annotation) else "_"
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id if _is_alias(node.value) else "_"
        else:
            continue
        if not name.startswith("_"):
            yield name


def _is_alias(value: ast.expr) -> bool:
    """Whether an assignment names a type: `A = B[C]`, `A = B | C` or `A = NewType(...)`."""
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) == "NewType"
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        return _is_type(value.left) and _is_type(value.right)
    return isinstance(value, ast.Subscript) and _is_type(value.value)


def _is_type(value: ast.expr) -> bool:
    if isinstance(value, ast.Subscript | ast.BinOp):
        return _is_alias(value)
    if isinstance(value, ast.Constant):
        return value.value is None
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    return (name[:1].isupper() and not name.isupper()) or name in ("dict", "list", "tuple", "set")


def callables_handed_over() -> list[str]:
    """Those that constructors, fields and `start` take, without clocks, chance, and tables."""
    defined = {module_name(file): _callable_aliases(parsed(file)) for file in product()}
    handed_over = []
    for file in product():
        known = {"Callable"} | defined[module_name(file)] | _imported_aliases(file, defined)
        handed_over += [
            f"{_path(file)}: {owner.name}({name})"
            for owner in nodes(file)
            if isinstance(owner, ast.ClassDef) and owner.name not in _ROWS_OF_TABLES
            for name, annotation in _handed_to(owner)
            if _is_callable(annotation, known)
        ]
    return handed_over


def _handed_to(owner: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    for member in owner.body:
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and member.name in _HANDED_TO:
            for argument in (*member.args.args, *member.args.kwonlyargs):
                if argument.annotation is not None:
                    yield argument.arg, argument.annotation
        elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            yield member.target.id, member.annotation


def _callable_aliases(module: ast.Module) -> set[str]:
    """Names of types that are called: aliases of `Callable`, protocols of `__call__`."""
    aliases = set()
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            is_type = isinstance(target, ast.Name) and _is_alias(node.value)
            if is_type and _is_callable(node.value, {"Callable"}):
                aliases.add(ast.unparse(target))
        elif isinstance(node, ast.ClassDef) and _members(node) == {"__call__"}:
            aliases.add(node.name)
    return aliases


def _imported_aliases(file: Path, defined: Mapping[str, set[str]]) -> set[str]:
    return {
        alias.asname or alias.name
        for node in nodes(file)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in defined.get(node.module or "", ())
    }


def _is_callable(annotation: ast.expr, aliases: set[str]) -> bool:
    if isinstance(annotation, ast.BinOp):
        return any(_is_callable(side, aliases) for side in (annotation.left, annotation.right))
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return _is_callable(ast.parse(annotation.value, mode="eval").body, aliases)
    if isinstance(annotation, ast.Subscript):
        name = ast.unparse(annotation.value)
        if name in _TABLES:
            return False
        if name == "Callable" and isinstance(annotation.slice, ast.Tuple):
            arguments, result = annotation.slice.elts
            is_number = ast.unparse(result) in _NUMBERS
            return not (is_number and isinstance(arguments, ast.List) and not arguments.elts)
        return name in aliases
    return isinstance(annotation, ast.Name) and annotation.id in aliases


# What a worker's processor and clock are to its throttle, and its calls to gRPC.
BOUNDARIES = frozenset({"Clock", "WorkerService"})


def protocols_of_one() -> list[str]:
    """Protocols that one class of the product or of its benchmarks has all members of, or none;
    those at a boundary of bytes or clocks apart.
    """
    classes = _classes(product())
    protocols = [node for node in classes if "Protocol" in map(_base, node.bases)]
    classes += _classes((ROOT / "benchmarks").rglob("*.py"))
    others = [_members(node) for node in classes if node not in protocols]
    return sorted(
        protocol.name
        for protocol in protocols
        if sum(_members(protocol) <= members for members in others) <= 1
        and _members(protocol) != {"__call__"}
        and protocol.name not in BOUNDARIES
    )


def _classes(files: Iterable[Path]) -> list[ast.ClassDef]:
    return [node for file in files for node in nodes(file) if isinstance(node, ast.ClassDef)]


def _base(node: ast.expr) -> str:
    return ast.unparse(node.value if isinstance(node, ast.Subscript) else node)


def _members(owner: ast.ClassDef) -> set[str]:
    """Methods, fields, and what `__init__` sets: a property of a protocol may be any of them."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {member.name for member in owner.body if isinstance(member, functions)}
    names |= {
        ast.unparse(member.target) for member in owner.body if isinstance(member, ast.AnnAssign)
    }
    return names | {
        node.attr
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def file_circles() -> list[list[str]]:
    """Groups of files each of which imports, in the end, all others of its group."""
    found = imports(product())
    return circles({_path(own): set(map(_path, targets)) for own, targets in found.items()})


def importers_of_optional_rooms() -> list[str]:
    """Files outside an optional room that import something of it, or name a module of it in a
    string, and the room.
    """
    return sorted(
        f"{_path(own)} imports {room}"
        for own, files in imports(product()).items()
        for room in OPTIONAL
        if not _path(own).startswith(f"{room}/")
        and (any(_path(file).startswith(f"{room}/") for file in files) or _names_in(own, room))
    )


def _names_in(file: Path, room: str) -> bool:
    """Whether a string of the file is, or begins with, the room's dotted name."""
    name = room.replace("/", ".")
    return any(f"{text}.".startswith((f"{name}.", f"{name}:")) for text in _strings(file))


@cache
def _strings(file: Path) -> set[str]:
    constants = (node.value for node in nodes(file) if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def private_reads() -> dict[str, int]:
    """How often each file of tests reads a private member of something that is not its own. What
    named tuples give to everybody begins with `_`, too, and is not private.
    """
    counts = {}
    for file in sorted((ROOT / "tests").rglob("*.py")):
        own = {*_private_names(file), *_OF_NAMED_TUPLES}
        reads = [
            node
            for node in nodes(file)
            if isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
            and node.attr not in own
            and ast.unparse(node.value) not in ("self", "cls")
        ]
        if reads:
            counts[_path(file)] = len(reads)
    return counts


def _private_names(file: Path) -> Iterator[str]:
    """Those that a file defines itself."""
    for node in nodes(file):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def _path(file: Path) -> str:
    return str(file.relative_to(ROOT))
