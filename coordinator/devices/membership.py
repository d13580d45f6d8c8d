"""Which devices take part: a pure state machine over addresses and device ids.

The one rule: a device id is in use through at most one address. An address is a *stranger's* if it
was announced over mDNS but no worker has ever answered there: anybody on the network can invent
such addresses. Strangers have their own slots, the oldest leaves for a new one, and the more there
are, the less often each is tried. Everything else is one table:

    state       event     next                                actions
    (unknown)   Sighted   connecting                          Connect
    connecting  Greeted   ready                               Join
                          alias (that machine is ready)       Close
                          refused (copied id, or too many)    Close, Problem
    connecting  Denied    refused                             Problem
    connecting  Dropped   waiting                             Problem (listed, the first time)
    ready       Dropped   waiting                             Leave, Connect for each alias
    waiting     Sighted   connecting                          Connect
    waiting     Tick      connecting when due, or forgotten   Connect
    refused     as waiting
    any         Withdrawn (unknown)                           Close, Leave

It takes `now`, and never reads a clock, the network or a global source of randomness.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from coordinator.devices.addresses import FIRST_RETRY_S, IDLE, RETRIED, Peer, PeerState
from coordinator.devices.events import (
    Action,
    AddressProblem,
    AddressSource,
    Close,
    Denied,
    Dropped,
    Event,
    Greeted,
    Join,
    Leave,
    Sighted,
    Tick,
    Withdrawn,
)
from protos.wire.facts import DeviceId

# Planning time grows with the square of the devices, and a home has far fewer.
MAX_DEVICES = 64
# Several addresses per device (Ethernet, Wi-Fi, IPv6, a name).
MAX_ADDRESSES = 4 * MAX_DEVICES
# More than a home has: somebody floods mDNS. Each takes a kilobyte.
MAX_STRANGERS = 1024
# Up to this many strangers are tried as often as other addresses; with more, each less often.
STRANGERS_AT_EASE = 32

# A connection that lived this long was good: the next loss starts with the shortest delay again.
STABLE_S = 10.0
# Addresses from mDNS that stay dead are forgotten (leases change); listed ones are tried forever.
# Twice the life of an announcement [RFC 6762, section 10: 75 minutes]: by then it has left every
# cache, so a worker that comes back is announced as new.
FORGET_AFTER_S = 2 * 4500.0

_NO_ANSWER = "Check that its worker runs and its port can be reached; the coordinator keeps trying"

_RANK: dict[AddressSource, int] = {"mdns": 0, "static": 1, "host": 2}


class DeviceTable:
    """`step(event, now)` is the only way to change it. `jitter` yields numbers in [0, 1)."""

    def __init__(
        self,
        jitter: Callable[[], float],
        max_devices: int = MAX_DEVICES,
        max_addresses: int = MAX_ADDRESSES,
        max_strangers: int = MAX_STRANGERS,
    ) -> None:
        self._jitter = jitter
        self._max_devices = max_devices
        self._max_addresses = max_addresses
        self._max_strangers = max_strangers
        # Oldest first.
        self._strangers: dict[str, None] = {}
        self._peers: dict[str, Peer] = {}
        # Of usable devices, the address of each.
        self.ready: dict[DeviceId, str] = {}
        self._said_full = False
        # Strangers that were dropped to make room.
        self.turned_away = 0

    @property
    def peers(self) -> tuple[Peer, ...]:
        """Every known address, in the order of discovery."""
        return tuple(self._peers.values())

    def is_stranger(self, address: str) -> bool:
        """Whether this address may be invented: it was announced, and no worker has answered."""
        return address in self._strangers

    def is_host(self, device_id: DeviceId) -> bool:
        """Whether this is the coordinator's own worker, however it was reached."""
        return any(p.device_id == device_id and p.source == "host" for p in self._peers.values())

    def step(self, event: Event, now: float) -> list[Action]:
        """What to do about `event`, in this order."""
        match event:
            case Sighted(address, source):
                return self._sighted(address, source, now)
            case Greeted():
                return self._greeted(event, now)
            case Denied():
                return self._denied(event, now)
            case Dropped(address, cause):
                return self._dropped(address, cause, now)
            case Withdrawn(address):
                return self._withdrawn(address, now)
            case Tick():
                return self._tick(now)
            case _:
                assert_never(event)

    def _sighted(self, address: str, source: AddressSource, now: float) -> list[Action]:
        peer = self._peers.get(address)
        if peer is None:
            made_room = self._make_room(address, source)
            if made_room is None:
                return self._full(address)
            peer = self._peers[address] = Peer(address, source, alive_s=now)
            if source == "mdns":
                self._strangers[address] = None
            return [*made_room, peer.connect(now)]
        peer.source = max(peer.source, source, key=_RANK.__getitem__)
        if peer.source != "mdns":
            self._strangers.pop(address, None)
        peer.alive_s = now
        # An announcement shortens the wait, but only so far that the address is not flooded.
        if peer.state in RETRIED and now - peer.tried_s >= FIRST_RETRY_S:
            return [peer.connect(now)]
        return []

    def _greeted(self, event: Greeted, now: float) -> list[Action]:
        peer = self._peers.get(event.address)
        if peer is None or peer.state is not PeerState.CONNECTING:
            # A late result of an attempt that was given up; a connection in use must not be closed.
            used = peer is not None and peer.state is PeerState.READY
            return [] if used else [Close(event.address)]
        if peer.address in self._strangers:
            if (made_room := self._make_room(peer.address, "static")) is None:
                return [Close(peer.address), *self._forget(peer), *self._full(peer.address)]
            del self._strangers[peer.address]
            return [*made_room, *self._known(peer, event, now)]
        return self._known(peer, event, now)

    def _known(self, peer: Peer, event: Greeted, now: float) -> list[Action]:
        peer.device_id, peer.boot_id, peer.alive_s = event.device_id, event.boot_id, now
        first = self.ready.get(event.device_id)
        if first is None:
            return self._admit(peer, event.device_id, now)
        if self._peers[first].boot_id == event.boot_id:
            peer.state, peer.reason, peer.cure = PeerState.ALIAS, f"the same device as {first}", ""
            return [Close(peer.address)]
        cause = f"{peer.address} and {first} are two machines with one id, {event.device_id}"
        cure = f"Delete the copied identity on {peer.address} and restart its worker"
        return [Close(peer.address), *peer.refuse("duplicate_id", cause, cure, now)]

    def _admit(self, peer: Peer, device_id: DeviceId, now: float) -> list[Action]:
        if len(self.ready) >= self._max_devices:
            cause = f"{peer.address} is left out: {self._max_devices} devices are in use"
            problem = peer.refuse("too_many_devices", cause, "Stop one of the others", now)
            return [Close(peer.address), *problem]
        self.ready[device_id] = peer.address
        peer.state, peer.tried_s = PeerState.READY, now
        peer.reason = peer.cure = ""
        return [Join(device_id, peer.address)]

    def _denied(self, event: Denied, now: float) -> list[Action]:
        peer = self._peers.get(event.address)
        if peer is None or peer.state is not PeerState.CONNECTING:
            return []
        peer.alive_s = now
        return peer.refuse("denied", event.cause, event.cure, now)

    def _dropped(self, address: str, cause: str, now: float) -> list[Action]:
        peer = self._peers.get(address)
        if peer is None or peer.state not in (PeerState.CONNECTING, PeerState.READY):
            return []
        was_ready = peer.state is PeerState.READY
        if was_ready:
            peer.alive_s = now
            if now - peer.tried_s >= STABLE_S:
                peer.attempts = 0
        crowd = len(self._strangers) / STRANGERS_AT_EASE if address in self._strangers else 1.0
        peer.wait(cause, now, self._jitter(), max(1.0, crowd))
        if was_ready:
            return self._leave(peer, cause, now)
        # A listed worker is missed; this is reported once.
        is_missed = peer.source == "static" and peer.attempts == 1
        return [AddressProblem(address, "no_answer", cause, _NO_ANSWER)] if is_missed else []

    def _leave(self, peer: Peer, reason: str, now: float) -> list[Action]:
        assert peer.device_id is not None
        del self.ready[peer.device_id]
        others = [
            other
            for other in self._peers.values()
            if other is not peer and other.device_id == peer.device_id and other.state in IDLE
        ]
        leave = Leave(peer.device_id, peer.address, reason)
        return [leave, *(other.connect(now) for other in others)]

    def _withdrawn(self, address: str, now: float) -> list[Action]:
        peer = self._peers.pop(address, None)
        self._strangers.pop(address, None)
        self._said_full = False
        if peer is None:
            return []
        if peer.state is PeerState.READY:
            return [Close(address), *self._leave(peer, "it was withdrawn", now)]
        return [Close(address)] if peer.state is PeerState.CONNECTING else []

    def _tick(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for peer in self.peers:
            if peer.state not in RETRIED or peer.retry_at_s > now:
                continue
            if peer.source == "mdns" and now - peer.alive_s > FORGET_AFTER_S:
                self._forget(peer)
                self._said_full = False
                continue
            actions.append(peer.connect(now))
        return actions

    def _make_room(self, address: str, source: AddressSource) -> list[Action] | None:
        """Forgets an address to make room for one more of this source; None if none can be
        forgotten.
        """
        if source == "mdns":
            if len(self._strangers) < self._max_strangers:
                return []
            oldest = self._peers[next(iter(self._strangers))]
            self.turned_away += 1
            return [*self._full(address), *self._forget(oldest)]
        known = [peer for peer in self._peers.values() if peer.address not in self._strangers]
        if len(known) < self._max_addresses:
            return []
        idle = next((p for p in known if p.source == "mdns" and p.state in IDLE), None)
        return None if idle is None else self._forget(idle)

    def _forget(self, peer: Peer) -> list[Action]:
        del self._peers[peer.address]
        self._strangers.pop(peer.address, None)
        return [Close(peer.address)] if peer.state is PeerState.CONNECTING else []

    def _full(self, address: str) -> list[Action]:
        if self._said_full:
            return []
        self._said_full = True
        cause = f"{len(self._peers)} addresses are known, the maximum: {address} is ignored"
        cure = "See in `imbrex doctor` what is announced, and stop whatever should not be"
        return [AddressProblem(address, "too_many_addresses", cause, cure)]
