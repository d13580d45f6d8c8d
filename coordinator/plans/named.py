"""Planners by name: built-in ones, those of installed packages, and `package.module:function`."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any, cast

from coordinator.costs.cluster import Planner
from coordinator.planning.planners.strategies import STRATEGIES
from coordinator.planning.plugin_errors import raised_at
from protos.errors import BadConfiguration, BadRequest, NotFound

ENTRY_POINTS = "imbrex.planners"


def names() -> tuple[str, ...]:
    """Every strategy that has a name: built-in ones, then those of installed packages."""
    installed = sorted(
        {entry.name for entry in entry_points(group=ENTRY_POINTS)} - STRATEGIES.keys()
    )
    return (*STRATEGIES, *installed)


def strategy(name: str) -> Planner:
    """The planner of this name. A name with a colon is `package.module:function`; packages cannot
    replace built-in names.

    Raises:
        NotFound: no such strategy, module or function.
        BadRequest: the object of this name is not callable.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    if ":" in name:
        return _callable(name, _imported(name))
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        try:
            return _callable(name, entry.load())
        except (ImportError, AttributeError) as error:
            raise NotFound(
                cause=f"the strategy {name!r} is installed as {entry.value} but can't be loaded "
                f"({error})",
                cure="Install its package again.",
            ) from error
    known = names()
    closest = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {closest[0]!r}? " if closest else ""
    raise NotFound(
        cause=f"there is no strategy {name!r}",
        cure=f"{hint}Known strategies: {', '.join(known)}; or give package.module:function.",
    )


def planner_of(own: Sequence[str], name: str) -> Planner:
    """The planner that a request names; empty for the first of `own`. Requests must not make this
    process import code: `package.module:function` is reserved for the coordinator's command line.

    Raises:
        NotFound: neither a built-in strategy nor one of `own`.
    """
    chosen = name or own[0]
    # Installed packages are searched on disk, which the usual names can do without.
    if chosen in STRATEGIES or chosen in own:
        return strategy(chosen)
    known = dict.fromkeys((*names(), *own))
    if chosen not in known:
        raise NotFound(
            cause=f"there is no strategy {chosen!r} here",
            cure=f"Known strategies: {', '.join(known)}; "
            "add others with `imbrex coordinator --planner`",
        )
    return strategy(chosen)


def _imported(name: str) -> Any:
    module, _, function = name.partition(":")
    try:
        spec = importlib.util.find_spec(module)
        file = spec.origin if spec and spec.origin else ""
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise NotFound(
            cause=f"the strategy {name!r} can't be loaded ({error})",
            cure="Write it as package.module:function, with a module that Python can import.",
        ) from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error} ({raised_at(error, file) or file})"
        raise BadConfiguration(
            cause=f"the strategy {name!r} can't be loaded: {reason}",
            cure="Correct that line.",
        ) from error


def _callable(name: str, planner: Any) -> Planner:
    if not callable(planner):
        raise BadRequest(
            cause=f"the strategy {name!r} is not a function",
            cure="Name a function that takes a network and a cluster and returns a Plan.",
        )
    return cast("Planner", planner)
