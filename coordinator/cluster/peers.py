"""One address of the cluster, as membership keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from coordinator.cluster.events import Action, Connect, Problem, ProblemCode, Source
from coordinator.tasks.plan import DeviceId

# A worker that restarts is back within a second or two; one that is off costs a packet per 10 s.
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 10.0
# Only a person can mend a refusal; this is how soon the cure is noticed without an announcement.
REFUSED_RETRY_S = 15.0


class PeerState(StrEnum):
    """What we know of an address."""

    CONNECTING = "connecting"
    READY = "ready"
    WAITING = "waiting"
    REFUSED = "refused"
    ALIAS = "alias"


RETRIED = (PeerState.WAITING, PeerState.REFUSED)
IDLE = (PeerState.ALIAS, *RETRIED)


@dataclass(slots=True)
class Peer:
    """One address. `alive_s` is the last sign of life, `tried_s` the start of the current or last
    attempt (while ready: of the connection), `retry_at_s` matters while waiting or refused;
    `reason` and `cure` tell people why it isn't ready, `code` is of the last refusal. Owned
    by `Membership`; others only read.
    """

    address: str
    source: Source
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
        """Whether anybody may have made this address up: announced, and nobody has answered."""
        return self.source == "mdns" and self.device_id is None

    def connect(self, now: float) -> Action:
        """Another attempt."""
        self.state, self.tried_s = PeerState.CONNECTING, now
        return Connect(self.address)

    def wait(self, cause: str, now: float, jitter: float, crowd: float = 1.0) -> None:
        """Try again later: exponential backoff, `crowd` times as long, of which `jitter` in [0, 1)
        picks a part.
        """
        delay = crowd * min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(self.attempts, 10))
        self.state, self.reason, self.cure = PeerState.WAITING, cause, ""
        self.retry_at_s = now + delay * (0.5 + 0.5 * jitter)
        self.attempts += 1

    def refuse(self, code: ProblemCode, cause: str, cure: str, now: float) -> list[Action]:
        """Unusable until somebody mends it; said only when it is news."""
        news = self.reason != cause
        self.state, self.retry_at_s = PeerState.REFUSED, now + REFUSED_RETRY_S
        self.reason, self.cure, self.code = cause, cure, code
        return [Problem(self.address, code, cause, cure)] if news else []
