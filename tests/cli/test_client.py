"""The client raises what the coordinator raised, and names strangers."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import grpc
import httpx
import pytest

from imbrex.client import Client, NoCoordinator, _is_cut
from protos.errors import BadRequest, NotFound, PeerViolation, Unavailable

ANSWERS = {
    "/v1/devices": (200, b"<html>a router's page</html>"),
    "/v1/models": (404, b"<html>nothing here</html>"),
    "/v1/models/gone/plan": (404, b'{"error": {"code": "not_found", "cause": "a", "cure": "b"}}'),
    "/v1/models/busy/plan": (503, b'{"error": {"code": "full", "cause": "a", "cure": "b"}}'),
    "/v1/models/odd/plan": (400, b'{"error": {"code": "bad_image", "cause": "a", "cure": "b"}}'),
    "/readyz": (503, b'{"error": {"code": "unavailable", "cause": "no worker", "cure": "b"}}'),
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = ANSWERS[self.path]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - as http.server calls it

    def log_message(self, *arguments: object) -> None:
        pass


class Dying(Handler):
    """Hangs up on the first calls that come after a while, as a coordinator does that dies."""

    calls: ClassVar[list[str]] = []
    deaths: ClassVar[int] = 0
    proxy: ClassVar[int] = 0  # the status that a proxy gives instead

    def do_GET(self) -> None:
        self.calls.append(self.path)
        if 1 < len(self.calls) <= 1 + self.deaths:
            if self.proxy:
                self.send_response(self.proxy)
                self.send_header("Content-Length", "0")
                self.end_headers()
            self.close_connection = True
            return
        super().do_GET()

    do_POST = do_GET  # noqa: N815 - as http.server calls it


@contextmanager
def answered_by(handler: type[Handler]) -> Iterator[Client]:
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            with Client(f"http://127.0.0.1:{server.server_port}/") as made:
                yield made
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def client() -> Iterator[Client]:
    with answered_by(Handler) as made:
        yield made


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr("imbrex.client.AGAIN_S", (0.0,) * 3)
    monkeypatch.setattr(Dying, "calls", [])
    with answered_by(Dying) as made:
        assert made.not_ready_because() == "no worker"
        yield made


@pytest.mark.parametrize("proxy", [0, 408, 502, 503, 504])
def test_requests_that_change_nothing_are_repeated(
    dying: Client, monkeypatch: pytest.MonkeyPatch, proxy: int
) -> None:
    monkeypatch.setattr(Dying, "deaths", 3)
    monkeypatch.setattr(Dying, "proxy", proxy)
    assert dying.not_ready_because() == "no worker"
    assert Dying.calls == ["/readyz"] * 5
    monkeypatch.setattr(Dying, "deaths", 100)
    with pytest.raises(NoCoordinator):
        dying.not_ready_because()


def test_a_first_call_whose_coordinator_dies_is_sent_again(
    dying: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dying, "deaths", 2)
    with Client(dying.url) as new:
        assert new.not_ready_because() == "no worker"
    assert Dying.calls == ["/readyz"] * 4


def test_a_connection_that_was_given_up_is_cut_and_a_late_answer_is_not() -> None:
    given_up = httpx.ReadTimeout("[Errno 110] Connection timed out")
    given_up.__cause__ = TimeoutError(errno.ETIMEDOUT, "Connection timed out")
    late = httpx.ReadTimeout("timed out")
    late.__cause__ = TimeoutError("timed out")
    assert (_is_cut(given_up), _is_cut(late)) == (True, False)
    assert _is_cut(httpx.ReadError("reset"))


def test_requests_that_change_something_are_sent_once(
    dying: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dying, "deaths", 1)
    with pytest.raises(NoCoordinator):
        dying.plan("gone")
    assert Dying.calls == ["/readyz", "/v1/models/gone/plan"]


def test_the_coordinators_errors_come_back(client: Client) -> None:
    for model, kind in (("gone", NotFound), ("busy", Unavailable), ("odd", BadRequest)):
        with pytest.raises(kind) as caught:
            client.plan(model)
        assert (caught.value.cause, caught.value.cure) == ("a", "b")


def test_a_reason_for_not_being_ready(client: Client) -> None:
    assert client.not_ready_because() == "no worker"


def test_strangers_are_named(client: Client) -> None:
    for ask in (client.devices, client.models):
        with pytest.raises(PeerViolation, match="not an imbrex coordinator"):
            ask()


def test_missing_coordinator_is_no_reason_for_not_being_ready() -> None:
    with Client("http://127.0.0.1:9") as client, pytest.raises(NoCoordinator):
        client.not_ready_because()


def test_an_address_without_a_scheme_is_one_of_http(client: Client) -> None:
    with Client(client.url.removeprefix("http://")) as made:
        assert made.url == client.url
        with pytest.raises(NotFound):
            made.plan("gone")


def test_a_port_of_grpc_is_named_as_such() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with Client(f"127.0.0.1:{port}") as made, pytest.raises(NoCoordinator) as refused:
            made.devices()
        assert "8461" in refused.value.cure
    finally:
        server.stop(None).wait()
