"""One address of the cluster, as `DeviceTable` keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from coordinator.devices.events import Action, AddressProblem, AddressSource, Connect, ProblemCode
from protos.wire.facts import DeviceId

# A worker that restarts is back within a second or two; one that is off costs a packet per 10 s.
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 10.0
# Only a person can fix a refusal; this bounds how late the fix is noticed without an announcement.
REFUSED_RETRY_S = 15.0


class PeerState(StrEnum):
    """The state of an address."""

    CONNECTING = "connecting"
    READY = "ready"
    WAITING = "waiting"
    REFUSED = "refused"
    ALIAS = "alias"


RETRIED = (PeerState.WAITING, PeerState.REFUSED)
IDLE = (PeerState.ALIAS, *RETRIED)
# Of a device that was there and gives no sign of life.
SILENT = (PeerState.WAITING, PeerState.CONNECTING)


def seconds_ago(seconds: float) -> str:
    """For people: `40 s ago`, `5 min ago`, `3 h ago`."""
    for limit_s, unit_s, unit in ((120, 1, "s"), (7200, 60, "min")):
        if seconds < limit_s:
            return f"{seconds / unit_s:.0f} {unit} ago"
    return f"{seconds / 3600:.0f} h ago"


@dataclass(slots=True)
class Peer:
    """One address. `alive_s` is the last sign of life, `tried_s` the start of the current or last
    attempt (of the connection while ready); `retry_at_s` matters while waiting or refused. `reason`
    and `cure` explain to people why it is not ready; `code` is that of the last refusal. Owned by
    `DeviceTable`; others only read it.
    """

    address: str
    source: AddressSource
    alive_s: float
    state: PeerState = PeerState.CONNECTING
    device_id: DeviceId | None = None
    boot_id: str = ""
    attempts: int = 0
    tried_s: float = 0.0
    retry_at_s: float = 0.0
    reason: str = ""
    cure: str = ""
    code: ProblemCode | Literal[""] = ""

    @property
    def is_stranger(self) -> bool:
        """Whether the address may be invented: it was announced, and no worker has answered."""
        return self.source == "mdns" and self.device_id is None

    def connect(self, now: float) -> Action:
        """Starts another attempt."""
        self.state, self.tried_s = PeerState.CONNECTING, now
        return Connect(self.address)

    def wait(self, cause: str, now: float, jitter: float, crowd: float = 1.0) -> None:
        """Delays the next attempt: exponential backoff, multiplied by `crowd`, randomised by
        `jitter` in [0, 1).
        """
        delay = crowd * min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(self.attempts, 10))
        self.state, self.reason, self.cure = PeerState.WAITING, cause, ""
        self.retry_at_s = now + delay * (0.5 + 0.5 * jitter)
        self.attempts += 1

    def refuse(self, code: ProblemCode, cause: str, cure: str, now: float) -> list[Action]:
        """Makes the peer unusable until a person fixes the problem; reported only if it is new."""
        news = self.reason != cause
        self.state, self.retry_at_s = PeerState.REFUSED, now + REFUSED_RETRY_S
        self.reason, self.cure, self.code = cause, cure, code
        return [AddressProblem(self.address, code, cause, cure)] if news else []
