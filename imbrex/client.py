"""Clients of a coordinator's HTTP interface: `Client` is synchronous, `AsyncClient` asynchronous.
Both have the calls in `imbrex.calls` as methods, with the same arguments and answers.
"""

import asyncio
import errno
import os
import socket
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from functools import update_wrapper
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

import httpx

from coordinator.serving.common import names
from coordinator.serving.common.keys import NoKey, NotAllowed
from imbrex import calls
from imbrex.calls import Call
from protos.daemon.urls import shown
from protos.errors import (
    BadConfiguration,
    BadRequest,
    ImbrexError,
    Infeasible,
    LostWorker,
    NotFiniteAnswer,
    NotFound,
    PeerViolation,
    TooLittleMemory,
    Unavailable,
)

URL = "http://127.0.0.1:8460"
CONNECT_TIMEOUT_S = 5.0
URL_VARIABLE = "IMBREX_URL"
# In the environment and not a flag: every user of a machine can see its command lines.
KEY_VARIABLE = "IMBREX_API_KEY"
# A file of certificates to trust in addition to the system's.
CA_VARIABLE = "IMBREX_CA"
# A model's first request may wait for weights to reach slow devices over Wi-Fi.
ANSWER_TIMEOUT_S = 600.0

# Of several coordinators behind one address another one answers after about a second.
AGAIN_S = (0.0, 0.2, 0.5, 1.0, 2.0)
# A machine that dies takes its connections with it and says nothing: one that has been silent for a
# second is probed, and reset by the machine that has its address now. Otherwise it is given up
# after three seconds, as is one that does not take what is sent, which is not probed.
_SIGNS_OF_LIFE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (
        ("TCP_KEEPIDLE", 1),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", 3000),  # milliseconds
    )
    if hasattr(socket, name)
]

# The connection is gone, and with it whatever was to come over it.
_GONE = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout)

# 408: a part of the request was lost with a connection.
_OF_PROXIES = (408, 502, 503, 504)

_KINDS = {
    kind.code: kind
    for kind in (
        BadRequest,
        NotFiniteAnswer,
        NotFound,
        NoKey,
        NotAllowed,
        Infeasible,
        TooLittleMemory,
        Unavailable,
        LostWorker,
        PeerViolation,
        BadConfiguration,
    )
}
_BY_STATUS: dict[int, type[ImbrexError]] = {
    404: NotFound,
    422: Infeasible,
    429: Unavailable,
    503: Unavailable,
}

P = ParamSpec("P")
T = TypeVar("T")


class NoCoordinator(Unavailable):
    """There is no answer at the coordinator's address."""

    code: ClassVar[str] = "no_coordinator"


class _Coordinator:
    """The address of a coordinator, and the interpretation of its answers."""

    def __init__(self, url: str | None, key: str | None, answer_timeout_s: float) -> None:
        given = (url or os.environ.get(URL_VARIABLE) or URL).rstrip("/")
        self.url = given if "://" in given else f"http://{given}"
        self.shown = shown(self.url, port=True)
        self._key = key
        self._timeout = httpx.Timeout(answer_timeout_s, connect=CONNECT_TIMEOUT_S)
        self._was_there = False

    def _made(self, kind: Callable[..., T], transport: Callable[..., Any]) -> T:
        """An HTTP client.

        Raises:
            BadRequest: the URL is invalid.
            BadConfiguration: the certificates that the environment names cannot be used.
        """
        try:
            if httpx.URL(self.url).scheme not in ("http", "https"):
                raise httpx.InvalidURL("neither http:// nor https://")
            # A proxy for the internet would not know devices of the local network.
            how = transport(verify=_believed(), trust_env=False, socket_options=_SIGNS_OF_LIFE)
            return kind(base_url=self.url, timeout=self._timeout, trust_env=False, transport=how)
        except httpx.InvalidURL as error:
            raise BadRequest(
                cause=f"{self.shown} is not a URL of a coordinator",
                cure="Write it as http://HOST:PORT",
            ) from error

    def _request(self, call: Call[Any]) -> dict[str, Any]:
        """The request, to be sent again as it is if no answer comes."""
        headers = {"Accept": call.accept}
        if call.asks:
            headers[names.ID_HEADER] = uuid.uuid4().hex
        if key := self._key or os.environ.get(KEY_VARIABLE):
            headers["X-API-Key"] = key
        if call.media_type:
            headers["Content-Type"] = call.media_type
        return {"method": call.method, "url": call.path, "content": call.body, "headers": headers}

    def _read(self, call: Call[T], response: httpx.Response) -> T:
        """The answer.

        Raises:
            ImbrexError: what the coordinator raised, with the same cause and cure.
            PeerViolation: it is not a coordinator of this version.
        """
        self._was_there = True
        if not response.is_success:
            raise self._error(response)
        try:
            return call.read(response)
        except (ValueError, KeyError, TypeError) as error:
            raise self._stranger() from error

    def _pauses(self, call: Call[Any]) -> Iterator[float]:
        """The seconds to wait before the call is sent again, each time that no answer comes."""
        return iter(AGAIN_S if call.changes_nothing else ())

    def _is_gone(self, error: httpx.HTTPError) -> bool:
        """Whether a coordinator, or a proxy before some, was there and is gone: it has answered
        before, or it took the request.
        """
        is_absent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
        return _is_cut(error) and (self._was_there or not is_absent)

    def _lost(self, error: httpx.HTTPError) -> ImbrexError:
        """The error for a missing answer."""
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return BadConfiguration(
                cause=f"the certificate of {self.shown} is not trusted ({error})",
                cure="Print the cluster's certificate with `imbrex cluster authority` on the "
                f"coordinator's device, and set {CA_VARIABLE} to its file",
            )
        if isinstance(error, httpx.ConnectError):
            return NoCoordinator(
                cause=f"no coordinator answers at {self.shown} ({error})",
                cure="Start one with `imbrex coordinator`, or give its address with --url",
            )
        if _is_not_http(error):
            return NoCoordinator(
                cause=f"what answers at {self.shown} does not speak HTTP ({error})",
                cure="Use the coordinator's HTTP port, by default 8460; 8461 is that of gRPC",
            )
        return NoCoordinator(
            cause=f"the coordinator at {self.shown} gave no answer "
            f"({str(error) or type(error).__name__})",
            cure="See its log and `imbrex status`",
        )

    def _error(self, response: httpx.Response) -> ImbrexError:
        """The error that the coordinator sent."""
        if _is_of_a_proxy(response):
            return NoCoordinator(
                cause=f"no coordinator answers behind {self.shown} (HTTP {response.status_code})",
                cure="See the logs of the proxy there and of the coordinators",
            )
        try:
            fields = response.json()["error"]
            kind = _KINDS.get(fields["code"]) or _BY_STATUS.get(response.status_code, BadRequest)
            return kind(cause=str(fields["cause"]), cure=str(fields["cure"]))
        except (ValueError, KeyError, TypeError):
            return self._stranger()

    def _stranger(self) -> ImbrexError:
        return PeerViolation(
            cause=f"what answers at {self.shown} is not an imbrex coordinator of this version",
            cure="Check --url, and run the same version everywhere",
        )


def _waits(build: Callable[P, Call[T]]) -> "Callable[Concatenate[Client, P], T]":
    """A method of `Client`."""

    def method(client: "Client", /, *args: P.args, **named: P.kwargs) -> T:
        return client.ask(build(*args, **named))

    return update_wrapper(method, build)


def _awaited(build: Callable[P, Call[T]]) -> "Callable[Concatenate[AsyncClient, P], Awaitable[T]]":
    """A method of `AsyncClient`."""

    async def method(client: "AsyncClient", /, *args: P.args, **named: P.kwargs) -> T:
        return await client.ask(build(*args, **named))

    return update_wrapper(method, build)


class Client(_Coordinator):
    """Calls the coordinator at `url` (else at `IMBREX_URL`, else on this device), with the API key
    `key` (else `IMBREX_API_KEY`); raises the coordinator's errors, with the same cause and cure.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        super().__init__(url, key, answer_timeout_s)
        self._http = self._made(httpx.Client, httpx.HTTPTransport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()

    def ask(self, call: Call[T]) -> T:
        """The answer to a call."""
        request, pauses = self._request(call), self._pauses(call)
        while True:
            try:
                response = self._http.request(**request)
            except httpx.HTTPError as error:
                if not self._is_gone(error) or (pause_s := next(pauses, None)) is None:
                    raise self._lost(error) from error
            else:
                if not _is_of_a_proxy(response) or (pause_s := next(pauses, None)) is None:
                    return self._read(call, response)
            time.sleep(pause_s)

    def not_ready_because(self) -> str:
        """Why requests cannot be answered yet; empty when they can."""
        try:
            self.ready()
        except NoCoordinator:
            raise
        except Unavailable as error:
            return error.cause
        return ""

    infer = _waits(calls.infer)
    outputs = _waits(calls.outputs)
    models = _waits(calls.models)
    catalogue = _waits(calls.catalogue)
    baseline = _waits(calls.baseline)
    plan = _waits(calls.plan)
    plan_now = _waits(calls.plan_now)
    send_plan = _waits(calls.send_plan)
    hold_plan = _waits(calls.hold_plan)
    release_plan = _waits(calls.release_plan)
    devices = _waits(calls.devices)
    drain = _waits(calls.drain)
    resume = _waits(calls.resume)
    profile = _waits(calls.profile)
    profile_again = _waits(calls.profile_again)
    doctor = _waits(calls.doctor)
    cluster_files = _waits(calls.cluster_files)
    trace = _waits(calls.trace)
    version = _waits(calls.version)
    ready = _waits(calls.ready)


class AsyncClient(_Coordinator):
    """The asyncio counterpart of `Client`; it may have many calls in flight at a time."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        super().__init__(url, key, answer_timeout_s)
        self._http = self._made(httpx.AsyncClient, httpx.AsyncHTTPTransport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def ask(self, call: Call[T]) -> T:
        """The answer to a call."""
        request, pauses = self._request(call), self._pauses(call)
        while True:
            try:
                response = await self._http.request(**request)
            except httpx.HTTPError as error:
                if not self._is_gone(error) or (pause_s := next(pauses, None)) is None:
                    raise self._lost(error) from error
            else:
                if not _is_of_a_proxy(response) or (pause_s := next(pauses, None)) is None:
                    return self._read(call, response)
            await asyncio.sleep(pause_s)

    infer = _awaited(calls.infer)
    outputs = _awaited(calls.outputs)
    models = _awaited(calls.models)
    catalogue = _awaited(calls.catalogue)
    baseline = _awaited(calls.baseline)
    plan = _awaited(calls.plan)
    plan_now = _awaited(calls.plan_now)
    send_plan = _awaited(calls.send_plan)
    hold_plan = _awaited(calls.hold_plan)
    release_plan = _awaited(calls.release_plan)
    devices = _awaited(calls.devices)
    drain = _awaited(calls.drain)
    resume = _awaited(calls.resume)
    profile = _awaited(calls.profile)
    profile_again = _awaited(calls.profile_again)
    doctor = _awaited(calls.doctor)
    cluster_files = _awaited(calls.cluster_files)
    trace = _awaited(calls.trace)
    version = _awaited(calls.version)
    ready = _awaited(calls.ready)


def _is_not_http(error: BaseException) -> bool:
    """Whether something came that is not an HTTP answer, rather than nothing, or half of one."""
    return isinstance(error, httpx.RemoteProtocolError) and str(error).startswith("illegal")


def _is_cut(error: BaseException) -> bool:
    """Whether the connection is gone; one that is given up since probes of it are not answered is
    called late by the library, as an answer is.
    """
    if _is_not_http(error):
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, _GONE) or getattr(cause, "errno", None) == errno.ETIMEDOUT:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _is_of_a_proxy(response: httpx.Response) -> bool:
    """Whether a proxy found no coordinator that answers: their own errors are JSON."""
    if response.status_code not in _OF_PROXIES:
        return False
    try:
        return "error" not in response.json()
    except ValueError:
        return True


def _believed() -> ssl.SSLContext:
    """The system's authorities, and those named in the environment.

    Raises:
        BadConfiguration: that file cannot be used.
    """
    context = ssl.create_default_context()
    if file := os.environ.get(CA_VARIABLE):
        try:
            context.load_verify_locations(file)
        except OSError as error:
            raise BadConfiguration(
                cause=f"the certificates in {file} cannot be used: {error}",
                cure=f"Correct {CA_VARIABLE}: `imbrex cluster authority` prints its content",
            ) from error
    return context
