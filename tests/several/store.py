"""Real servers of NATS, for tests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.store import SERVER

needs_server = pytest.mark.skipif(not SERVER, reason="needs NATS: make servers")


def alone(names: Sequence[str]) -> str:
    """A configuration in which only these users may connect, with their name as password."""
    users = ", ".join(f'{{ user: "{name}", password: "{name}" }}' for name in names)
    return f"authorization {{ users: [{users}] }}\n"
