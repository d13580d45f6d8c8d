"""`imbrex cluster key`, `keys` and `revoke`: the file of API keys, which a running coordinator
reloads.
"""

from __future__ import annotations

from pathlib import Path

from coordinator.serving.common.keys import Keys, Role
from coordinator.settings import CoordinatorSettings
from coordinator.trust.open_state import open_state
from imbrex import terminal


def add(config: Path | None, state_dir: Path | None, name: str, role: str, *, as_json: bool) -> int:
    """Prints a new key, alone on standard output."""
    secret = _keys(config, state_dir).add(name, Role(role))
    if as_json:
        terminal.print_json({"name": name, "role": role, "key": secret})
    else:
        print(secret)
        terminal.err().print("It is not shown again.", highlight=False)
    return 0


def show(config: Path | None, state_dir: Path | None, *, as_json: bool) -> int:
    """Prints names and roles."""
    found = _keys(config, state_dir).all()
    if as_json:
        listed = [{"name": key.name, "role": key.role.value} for key in found]
        terminal.print_json({"keys": listed})
        return 0
    table = terminal.table("name", "role")
    for key in found:
        table.add_row(key.name, key.role.value)
    terminal.out().print(
        table if found else "no keys: anyone who can reach the coordinator may do everything"
    )
    return 0


def revoke(config: Path | None, state_dir: Path | None, name: str, *, as_json: bool) -> int:
    """Revokes a key."""
    keys = _keys(config, state_dir)
    keys.remove(name)
    left = len(keys.all())
    if as_json:
        terminal.print_json({"name": name, "keys_left": left})
    else:
        told = f"{left} keys are left" if left else "no key is left: anyone may do everything"
        terminal.out().print(f"{name} is revoked; {told}", highlight=False)
    return 0


def _keys(config: Path | None, state_dir: Path | None) -> Keys:
    folder = CoordinatorSettings.load(config, {"state_dir": state_dir}).state_dir
    folder.mkdir(parents=True, exist_ok=True)
    return Keys(open_state(folder))
