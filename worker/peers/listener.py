"""The listener for neighbours' halos: one thread reads each stream and delivers every box. If that
completes a task, the thread may compute it, while another reads its stream. Streams of hosts, which
begin with another byte, are passed to the event loop.
"""

from __future__ import annotations

import hmac
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import structlog

from protos.daemon.ports import cannot_listen
from protos.errors import PeerViolation
from protos.rpc.channels import Caller
from protos.rpc.direct import GREET_S, PREFACE, tune
from protos.trust.identity import device_of
from worker.peers.offers import Offers
from worker.peers.packets import WELCOME, PacketReader, read_greeting
from worker.peers.readers import FollowUp, PeerStream, Readers
from worker.tasks.actions import TensorPiece

# Connections that have not greeted yet, and streams of one neighbour: its present one, and those
# from before its cable was pulled. Each may hold a packet of 4 MB while it is read.
_MOST_STRANGERS = 16
MOST_STREAMS_OF_A_PEER = 4
_MOST_STREAMS = 256
# Before another attempt to accept a connection.
_PAUSE_S = 0.1

# Returns what the calling thread is to do next, if anything.
Deliver = Callable[[TensorPiece], FollowUp | None]

_log = structlog.get_logger()


class DataListener:
    """Listens from construction on. `deliver` is called in the reading threads; `offers` takes the
    streams of hosts.
    """

    def __init__(
        self,
        host: str,
        port: int,
        caller: Caller,
        deliver: Deliver,
        offers: Offers,
    ) -> None:
        self._caller = caller
        self._deliver = deliver
        self._offers = offers
        self._members: frozenset[str] | None = None
        self._lock = threading.Lock()
        self._streams: dict[PeerStream, None] = {}
        self._readers = Readers(self._serve)
        self._is_closing = False
        self._socket = _listening(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name="data accept", daemon=True)
        self._accepting.start()

    def keep(self, members: Collection[str]) -> None:
        """Sets the members; ends the streams of all other devices."""
        with self._lock:
            self._members = frozenset(members)
            gone = [stream for stream in self._streams if stream.sender not in self._members]
        for stream in gone:
            if stream.sender:
                _hang_up(stream.socket)

    def close(self) -> None:
        """Ends every stream and stops listening."""
        self._is_closing = True
        _hang_up(self._socket)
        self._accepting.join()
        self._socket.close()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            _hang_up(stream.socket)
        self._readers.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._socket.accept()
            except OSError as error:
                if self._is_closing:
                    return
                # The process or the system has no more descriptors, or no memory.
                _log.warning("a data stream cannot be accepted", cause=str(error))
                time.sleep(_PAUSE_S)
                continue
            stream = PeerStream(accepted)
            with self._lock:
                strangers = [other for other in self._streams if not other.sender]
                if len(self._streams) >= _MOST_STREAMS:
                    accepted.close()
                    continue
                if len(strangers) >= _MOST_STRANGERS:
                    # A neighbour greets at once, so the oldest ungreeted connection is not a
                    # neighbour's.
                    _hang_up(strangers[0].socket)
                self._streams[stream] = None
            try:
                self._readers.begin(stream)
            except RuntimeError as error:
                _log.warning("a data stream cannot be read", cause=str(error))
                self._forget(stream)

    def _serve(self, stream: PeerStream) -> FollowUp | None:
        work: FollowUp | None = None
        try:
            if stream.reader is None and not self._is_neighbour(stream):
                return None
            work = self._read(stream)
        except PeerViolation as violation:
            _log.warning("data stream refused", sender=stream.sender, cause=violation.cause)
        except OSError as error:
            if not stream.sender:
                _log.warning("data stream refused", cause=str(error))
        finally:
            if work is None:
                self._forget(stream)
        return work

    def _forget(self, stream: PeerStream) -> None:
        with self._lock:
            self._streams.pop(stream, None)
        stream.socket.close()

    def _is_neighbour(self, stream: PeerStream) -> bool:
        """Completes the greeting, after which the sender is known; passes on a host's stream.

        Raises:
            PeerViolation: the sender may not send here.
            OSError: the connection broke, or TLS failed.
        """
        stream.socket.settimeout(GREET_S)
        tune(stream.socket)
        credentials = self._caller.credentials
        context = credentials.tls_server() if credentials is not None else None
        if stream.socket.recv(1, socket.MSG_PEEK) == PREFACE:
            stream.socket.recv(1)
            self._offers.take(socket.socket(fileno=stream.socket.detach()), context)
            return False
        self._greet(stream, context)
        return True

    def _greet(self, stream: PeerStream, context: ssl.SSLContext | None) -> None:
        if context is not None:
            secured = context.wrap_socket(stream.socket, server_side=True)
            with self._lock:
                stream.socket = secured
        sender, secret = read_greeting(stream.socket)
        with self._lock:
            if objection := self._objection(stream.socket, sender, secret):
                raise PeerViolation(cause=objection, cure="See `imbrex cluster list`")
            stream.sender = sender
        stream.socket.sendall(WELCOME)
        stream.socket.settimeout(None)
        stream.reader = PacketReader(stream.socket, sender)

    def _objection(self, stream: socket.socket, sender: str, secret: str) -> str:
        """The reason to refuse a stream; empty if there is none."""
        if isinstance(stream, ssl.SSLSocket):
            shown: dict[str, Any] = dict(stream.getpeercert() or {})
            names = shown.get("subjectAltName", ())
            own = device_of(tuple(name for kind, name in names if kind == "DNS"))
            if own != sender or not own:
                return f"its certificate is for {own!r}, it says that it is {sender!r}"
            if sender not in (self._members or ()):
                return f"device {sender} is not a member of the cluster"
        elif not hmac.compare_digest(secret.encode(), self._caller.secret.encode()):
            return "the cluster secret is missing or wrong"
        if sum(other.sender == sender for other in self._streams) >= MOST_STREAMS_OF_A_PEER:
            return f"device {sender} has {MOST_STREAMS_OF_A_PEER} streams open already"
        return ""

    def _read(self, stream: PeerStream) -> FollowUp | None:
        """Delivers until the stream ends, or until a piece leads to work."""
        assert stream.reader is not None
        charge, deliver = self._caller.endpoint.charge, self._deliver
        while (packet := stream.reader.next()) is not None:
            piece, is_last = packet
            stream.uncharged_bytes += piece.array.nbytes
            if is_last:
                charge(stream.uncharged_bytes)
                stream.uncharged_bytes = 0
            if (work := deliver(piece)) is not None:
                return work
        return None


def _listening(host: str, port: int) -> socket.socket:
    """A socket on the given port, else on any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in dict.fromkeys((port, 0)):
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host.strip("[]"), wanted))
            listener.listen(_MOST_STRANGERS)
        except OSError as error:
            listener.close()
            if wanted == 0:
                ways = ("host (--host)", "data_port (--data-port)")
                raise cannot_listen(host, port, ways, error.strerror or str(error)) from error
        else:
            return listener
    raise AssertionError("any free port was tried")


def _hang_up(stream: socket.socket) -> None:
    """Shuts the socket down, below TLS, so that its reader sees the end."""
    with suppress(OSError):
        socket.socket.shutdown(stream, socket.SHUT_RDWR)
