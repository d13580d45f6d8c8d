"""Optional packages: they can be deleted, and what they offer is named `package.module:name`."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from protos.errors import NotFound

# The packages at the top, all of imbrex.
OWN = frozenset({"coordinator", "imbrex", "models", "protos", "worker"})


def lacking(module: str) -> NotFound:
    """The error for a module of imbrex that does not exist."""
    return NotFound(
        cause=f"this installation of imbrex lacks {module}",
        cure="Install imbrex again, with all of its packages",
    )


def is_installed(member: str) -> bool:
    """Whether the module of `package.module:name` exists; it is not imported. A folder without
    modules, which is left where others were deleted, is none.
    """
    try:
        spec = find_spec(member.partition(":")[0])
    except ModuleNotFoundError:
        return False
    return spec is not None and spec.has_location


def imported(member: str) -> Any:
    """What `package.module:name` names; its module is imported by this call.

    Raises:
        NotFound: the module does not exist.
    """
    module, _, name = member.partition(":")
    if not is_installed(module):
        raise lacking(module)
    return getattr(import_module(module), name)
