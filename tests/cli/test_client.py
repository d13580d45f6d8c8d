"""The client raises what the coordinator raised, and names strangers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import pytest

from imbrex.client import Client, NoCoordinator
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


@pytest.fixture
def client() -> Iterator[Client]:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with Client(f"http://127.0.0.1:{server.server_port}/") as made:
            yield made
        server.shutdown()
        thread.join()


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


def test_nobody_is_no_reason_for_not_being_ready() -> None:
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
