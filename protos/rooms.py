"""Optional packages: they can be deleted, and what they offer is named `package.module:name`."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from protos.errors import NotFound


def is_installed(member: str) -> bool:
    """Whether the module of `package.module:name` exists; it is not imported."""
    try:
        return find_spec(member.partition(":")[0]) is not None
    except ModuleNotFoundError:
        return False


def imported(member: str) -> Any:
    """What `package.module:name` names; its module is imported by this call.

    Raises:
        NotFound: the module does not exist.
    """
    if not is_installed(member):
        raise NotFound(
            cause=f"this installation of imbrex lacks {member.partition(':')[0]}",
            cure="Install imbrex again, with all of its packages",
        )
    module, _, name = member.partition(":")
    return getattr(import_module(module), name)
