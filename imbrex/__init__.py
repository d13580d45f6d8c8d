"""imbrex from Python: clients of a coordinator, and planning, prediction and checks on this
machine.

Every name is imported on first use: the package itself imports nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.answers import PlanChoice as Choice
    from coordinator.costs.cluster import Cluster
    from coordinator.planning.plan_json import PlanFile as Plan
    from imbrex.client import AsyncClient, Client, NoCoordinator
    from imbrex.library import Predicted, Refused, check, load_cluster, plan, simulate
    from models.check.check import CheckReport
    from protos.errors import ImbrexError

_HOMES = {
    "AsyncClient": ("imbrex.client", "AsyncClient"),
    "CheckReport": ("models.check.check", "CheckReport"),
    "Choice": ("coordinator.answers", "PlanChoice"),
    "Client": ("imbrex.client", "Client"),
    "Cluster": ("coordinator.costs.cluster", "Cluster"),
    "ImbrexError": ("protos.errors", "ImbrexError"),
    "NoCoordinator": ("imbrex.client", "NoCoordinator"),
    "Plan": ("coordinator.planning.plan_json", "PlanFile"),
    "Predicted": ("imbrex.library", "Predicted"),
    "Refused": ("imbrex.library", "Refused"),
    "check": ("imbrex.library", "check"),
    "load_cluster": ("imbrex.library", "load_cluster"),
    "plan": ("imbrex.library", "plan"),
    "simulate": ("imbrex.library", "simulate"),
}

__all__ = [
    "AsyncClient",
    "CheckReport",
    "Choice",
    "Client",
    "Cluster",
    "ImbrexError",
    "NoCoordinator",
    "Plan",
    "Predicted",
    "Refused",
    "check",
    "load_cluster",
    "plan",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'imbrex' has no attribute {name!r}")
    module, there = _HOMES[name]
    return getattr(import_module(module), there)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
