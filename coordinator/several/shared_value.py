"""The value that coordinators share: all documents of a cluster's state, as JSON."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from coordinator.trust.cluster_state import (
    COORDINATORS,
    DEFAULTS,
    DEVICES,
    DRAINED,
    GENERATION,
    INVITATIONS,
    KEYS,
    MODELS,
    PROFILES,
    QUARANTINED,
    Entries,
)
from protos.errors import PeerViolation
from protos.trust.identity import fingerprint

# Several times what 64 devices, 64 keys, 256 invitations, 32 profiles and 100 models take.
MOST_BYTES = 512 << 10
_FORMAT = 1
_MEMBER = {"name": str, "since": datetime, "expires": datetime}
# What the entries of each document must have; documents of later versions are passed on.
_FIELDS: Mapping[str, Mapping[str, type]] = {
    DEVICES: _MEMBER,
    COORDINATORS: _MEMBER,
    INVITATIONS: {"expires": datetime},
    KEYS: {"sha256": str, "role": str},
    DRAINED: {},
    QUARANTINED: {"evidence": str},
    MODELS: {"newest": int, "versions": dict},
    DEFAULTS: {"model": str},
    PROFILES: {"profile": str},
    GENERATION: {},
}
_ROLES = ("infer", "admin")


@dataclass(slots=True)
class Shared:
    """The state of a cluster with this authority (its fingerprint). The epoch is new whenever a
    state is put into a store.
    """

    epoch: str
    authority: str
    documents: dict[str, Entries] = field(default_factory=dict)

    def require(self, authority_pem: bytes, known: Callable[[str], Entries]) -> None:
        """Refuses another cluster's state, and one in which devices belong to the cluster that were
        removed from the `known` one.

        Raises:
            PeerViolation: it is refused.
        """
        if self.authority != fingerprint(authority_pem):
            raise PeerViolation(
                cause="the state there is another cluster's", cure="Name this cluster's servers"
            )
        there, here = (
            int(entries.get("members", {}).get("generation", 1))
            for entries in (self.documents.get(GENERATION, {}), known(GENERATION))
        )
        if there < here:
            raise PeerViolation(
                cause=f"the state there is older than this coordinator's copy: its list of members "
                f"has generation {there}, the copy's {here}",
                cure="Put the newest copy there (`imbrex cluster move-state URL --replace`)",
            )


def dumped(shared: Shared) -> bytes:
    """The value as bytes."""
    told = {
        "format": _FORMAT,
        "epoch": shared.epoch,
        "authority": shared.authority,
        "documents": shared.documents,
    }
    return json.dumps(told, sort_keys=True).encode()


def parsed(data: bytes) -> Shared:
    """Reads a value.

    Raises:
        PeerViolation: it is not one.
    """
    try:
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has {len(data)} bytes")
        told = json.loads(data)
        if not isinstance(told, dict) or told.get("format") != _FORMAT:
            raise ValueError(f"it does not have the format {_FORMAT}")
        shared = Shared(_text(told, "epoch"), _text(told, "authority"), told["documents"])
        if not isinstance(shared.documents, dict):
            raise ValueError("it holds no documents")
        for name, entries in shared.documents.items():
            _check(name, entries)
    except (ValueError, KeyError, RecursionError) as error:
        raise PeerViolation(
            cause=f"the value there is not the state of a cluster: {error}",
            cure="Run the same version of imbrex on every coordinator, or put the state there "
            "again (`imbrex cluster move-state URL --replace`)",
        ) from error
    return shared


def _check(name: str, entries: Any) -> None:
    if not isinstance(entries, dict) or not all(isinstance(e, dict) for e in entries.values()):
        raise ValueError(f"{name!r} does not hold entries")
    for entry in entries.values():
        for key, kind in _FIELDS.get(name, {}).items():
            value = entry.get(key)
            if kind is datetime:
                if datetime.fromisoformat(str(value)).tzinfo is None:
                    raise ValueError(f"{key!r} in {name!r} has no time zone")
            elif not isinstance(value, kind):
                raise ValueError(f"{key!r} is missing in {name!r}")
        if name == KEYS and entry["role"] not in _ROLES:
            raise ValueError(f"{entry['role']!r} is not a role")
        if name == GENERATION and not all(isinstance(value, int) for value in entry.values()):
            raise ValueError("a generation is not a number")


def _text(told: Mapping[str, Any], key: str) -> str:
    if not isinstance(value := told.get(key), str):
        raise ValueError(f"{key!r} is missing")
    return value
