"""How long it takes until a change of the cluster at one coordinator is true of the other."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped, unused-ignore]

from benchmarks.pair.processes import START_S, Member, Pair
from coordinator.library.sharing import open_store
from coordinator.several.shared_store import SharedStore
from coordinator.trust import roster
from coordinator.trust.cluster_state import DEVICES, ClusterState
from coordinator.trust.trust import Certified, Trust
from models.catalogue.installed import MODEL_FILE, Store
from models.digits import MODEL
from protos.trust.identity import now_utc
from protos.wire.facts import DeviceId

_LOOK_S = 0.02
_NOBODY = DeviceId("f" * 16)
_MODEL = "another"
_IDLE_S, _SETTLE_S, _CHANGES = 60.0, 5.0, 20


def changed(made: Pair, times: int) -> dict[str, Any]:
    """Seconds, each from the order to its effect at the other coordinator (at most `START_S`): a
    member that joins and one that is removed, a device that is drained and resumed, a model that is
    installed and removed; at last the second coordinator is removed, from the order until no worker
    takes its orders.
    """
    one, two = made.members
    certified = Trust.load(one.state).certified
    assert certified is not None
    seen: dict[str, list[float]] = {}

    def timed(name: str, order: Callable[[], object], is_true: Callable[[], bool]) -> None:
        began_s = time.monotonic()
        order()
        while not is_true() and time.monotonic() < began_s + START_S:
            time.sleep(_LOOK_S)
        seen.setdefault(name, []).append(round(time.monotonic() - began_s, 3))

    there = ClusterState(two.state)
    member = roster.Member(_NOBODY, "nobody", now_utc(), now_utc())
    try:
        for _ in range(times):
            timed(
                "joins",
                lambda: certified.roster.admit(member),
                lambda: _NOBODY in there.entries(DEVICES),
            )
            timed(
                "is removed",
                lambda: certified.roster.remove(_NOBODY),
                lambda: _NOBODY not in there.entries(DEVICES),
            )
            timed("drained", lambda: _order(one, "drain"), lambda: _states(two)[0] == "drained")
            timed("resumed", lambda: _order(two, "resume"), lambda: _states(one)[0] == "ready")
            timed("installed", lambda: _at(one, _add), lambda: _has(two))
            timed("model removed", lambda: _at(two, _remove), lambda: not _has(one))
        timed(
            "a removed coordinator is out",
            lambda: certified.roster.remove(_other(certified)),
            lambda: "ready" not in _states(two),
        )
    finally:
        certified.state.close()
    return {name: sorted(value) for name, value in seen.items()}


def store_costs(made: Pair) -> dict[str, Any]:
    """What the store's servers take: resident memory, and bytes given to disks, of each in an idle
    minute, and for each of some changes.
    """
    servers = [psutil.Process(node.process.pid) for node in made.store.nodes if node.process]

    def written() -> list[int]:
        return [server.io_counters().write_bytes for server in servers]

    before = written()
    time.sleep(_IDLE_S)
    idle = written()
    certified = Trust.load(made.members[0].state).certified
    assert certified is not None
    member = roster.Member(_NOBODY, "nobody", now_utc(), now_utc())
    try:
        for _ in range(_CHANGES // 2):
            certified.roster.admit(member)
            certified.roster.remove(_NOBODY)
    finally:
        certified.state.close()
    time.sleep(_SETTLE_S)
    after = written()
    return {
        "resident_mb": [round(server.memory_info().rss / 1e6, 1) for server in servers],
        "idle_bytes_a_minute": [b - a for a, b in zip(before, idle, strict=True)],
        "bytes_a_change": [round((b - a) / _CHANGES) for a, b in zip(idle, after, strict=True)],
    }


def _add(store: Store) -> None:
    def write(folder: Path) -> None:
        shutil.copyfile(MODEL, folder / MODEL_FILE)

    store.put(_MODEL, write)


def _remove(store: Store) -> None:
    store.remove(_MODEL)


def _at(coordinator: Member, change: Callable[[Store], None]) -> None:
    """Changes the models of a coordinator, as a command does."""
    store = open_store(coordinator.models)
    assert isinstance(store, SharedStore)
    try:
        change(store)
    finally:
        store.state.close()


def _has(coordinator: Member) -> bool:
    """Whether a coordinator says that it has it."""
    url = f"{coordinator.url}/v2/repository/index"
    rows = httpx.post(url, timeout=START_S, trust_env=False).json()
    return any(row["name"] == _MODEL and row.get("state") != "UNAVAILABLE" for row in rows)


def _other(certified: Certified) -> str:
    own = certified.credentials.identity.names
    return next(id_ for id_ in certified.roster.coordinators() if not any(id_ in n for n in own))


def _order(coordinator: Member, what: str) -> None:
    url = f"{coordinator.url}/v1/devices/worker-1/{what}"
    httpx.post(url, timeout=START_S, trust_env=False).raise_for_status()


def _states(coordinator: Member) -> list[str]:
    """Of worker-1, worker-2, ..."""
    found = httpx.get(f"{coordinator.url}/v1/devices", timeout=START_S, trust_env=False).json()
    rows = sorted(found["devices"], key=lambda row: str(row["name"]))
    return [str(row["state"]) for row in rows]
