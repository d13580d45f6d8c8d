"""Planners that are somebody else's code: what they do wrong is an error with its file and line."""

import functools
import traceback
from types import CodeType

from coordinator.costs.cluster import Cluster, Planner
from coordinator.tasks.plan import Plan
from models.cut.units import Network
from protos.errors import BadConfiguration, ImbrexError


class BrokenPlanner(BadConfiguration):
    """A planner that raises, or returns something that is not a plan."""

    def __init__(self, planner: Planner, cause: str, where: str) -> None:
        super().__init__(
            cause=f"the planner {name_of(planner)!r} {cause} ({where})",
            cure="Correct it, or use another strategy; docs/planners.md shows one",
        )


def guarded(planner: Planner) -> Planner:
    """The same planner, whose mistakes are errors of ours."""

    def plan(network: Network, cluster: Cluster) -> Plan:
        try:
            made = planner(network, cluster)
        except ImbrexError:
            raise
        except Exception as error:
            raise broken(planner, error) from error
        if not isinstance(made, Plan):
            told = "None" if made is None else f"an object of type {type(made).__name__}"
            raise BrokenPlanner(planner, f"returns {told} instead of a Plan", defined_at(planner))
        return made

    return plan


def broken(planner: Planner, error: Exception) -> BrokenPlanner:
    """What a planner, or the check of its plan, raised."""
    told = f"fails: {type(error).__name__}: {error}"
    code = _code(planner)
    where = raised_at(error, code.co_filename if code else "") or defined_at(planner)
    return BrokenPlanner(planner, told, where)


def raised_at(error: BaseException, file: str) -> str:
    """The line of this file where an error comes from; empty if it is not from there."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return f"{file}, line {error.lineno}"
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == file]
    return f"{file}, line {lines[-1]}" if lines else ""


def defined_at(planner: Planner) -> str:
    """Where a planner is defined."""
    code = _code(planner)
    return f"{code.co_filename}, line {code.co_firstlineno}" if code else "not written in Python"


def is_ours(planner: Planner) -> bool:
    """Whether it is one of imbrex's."""
    return str(getattr(planner, "__module__", "")).startswith("coordinator.")


def name_of(planner: Planner) -> str:
    """Its name in messages."""
    if isinstance(planner, functools.partial):
        return name_of(planner.func)
    return str(getattr(planner, "__name__", type(planner).__name__))


def _code(planner: Planner) -> CodeType | None:
    """Its code: a function's, or that of what a partial or a callable object calls."""
    if isinstance(planner, functools.partial):
        return _code(planner.func)
    function = planner if hasattr(planner, "__code__") else type(planner).__call__
    found = getattr(function, "__code__", None)
    return found if isinstance(found, CodeType) else None
