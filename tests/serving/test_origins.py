"""What pages of other sites can have a browser do here: nothing."""

from __future__ import annotations

import socket
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest

from coordinator.devices.children import Child
from coordinator.serving.app import create_app
from coordinator.serving.common import access
from coordinator.serving.common.access import HostNames
from tests.serving.in_place import InPlace
from tests.serving.real import running
from tests.serving.routes import OPEN, READING, every_route, filled


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8460", "10.0.0.7.nip.io", "tes"])
async def test_a_name_that_is_not_ours_is_not_answered(http: httpx.AsyncClient, host: str) -> None:
    """DNS rebinding: a page of that name has the name lead here."""
    orders = (("GET", "/v1/devices"), ("DELETE", "/v1/plans/tiny"), ("POST", "/v1/devices/x/drain"))
    for method, path in orders:
        headers = {"Host": host, "Origin": f"http://{host}"}
        refused = await http.request(method, path, headers=headers)
        assert refused.status_code == HTTPStatus.FORBIDDEN, path
        assert host.partition(":")[0] in refused.text
        assert "host_names" in refused.json()["error"]["cure"]


@pytest.mark.parametrize(
    "host",
    ["test", "TEST.", "localhost:8460", "127.0.0.1", "192.168.1.7:8460", "[fe80::1]:8460", "[::1]"]
    + [f"{socket.gethostname().partition('.')[0]}{end}" for end in ("", ".local", ".local:8460")],
)
async def test_our_names_and_every_address_are(http: httpx.AsyncClient, host: str) -> None:
    assert (await http.get("/v1/devices", headers={"Host": host})).status_code == HTTPStatus.OK


@pytest.mark.needs_room("coordinator/serving/oip")
@pytest.mark.needs_room("coordinator/serving/deepstack")
async def test_probes_may_ask_for_anybody(http: httpx.AsyncClient) -> None:
    for path in OPEN:
        answer = await http.get(path, headers={"Host": "whatever.example"})
        assert answer.status_code == HTTPStatus.OK


def test_the_networks_own_domain_and_new_names_are_found(monkeypatch, tmp_path: Path) -> None:
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 192.168.1.1\nsearch fritz.box lan\n")
    monkeypatch.setattr(access, "_RESOLVER", resolver)
    monkeypatch.setattr(socket, "gethostname", lambda: "Kitchen")
    clock = [0.0]
    names = HostNames(("detector.home",), clock=lambda: clock[0])
    for name in ("kitchen", "kitchen.local", "kitchen.fritz.box", "kitchen.lan", "detector.home"):
        assert name in names
    for name in ("kitchen.evil.example", "fritz.box", "cellar.lan", ""):
        assert name not in names
    monkeypatch.setattr(socket, "gethostname", lambda: "cellar")
    assert "cellar.lan" not in names
    clock[0] = 61.0
    assert "cellar.lan" in names


async def test_an_origin_of_another_scheme_or_port_is_another_site(http: httpx.AsyncClient) -> None:
    for origin in ("https://localhost", "http://localhost:8461", "http://localhost.evil", "null"):
        headers = {"Origin": origin, "Host": "localhost"}
        refused = await http.delete("/v1/plans/tiny", headers=headers)
        assert refused.status_code == HTTPStatus.FORBIDDEN, origin
    headers = {"Origin": "http://localhost", "Host": "localhost"}
    own = await http.delete("/v1/plans/tiny", headers=headers)
    assert own.status_code != HTTPStatus.FORBIDDEN
    transport = httpx.ASGITransport(create_app(InPlace()), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="https://localhost") as tls:
        for origin, allowed in (("https://localhost", True), ("http://localhost", False)):
            answer = await tls.delete("/v1/plans/tiny", headers={"Origin": origin})
            assert (answer.status_code != HTTPStatus.FORBIDDEN) == allowed


@pytest.mark.needs_room("coordinator/serving/page")
async def test_no_get_loads_plans_or_sends_anything(
    tmp_path: Path, workers: list[Child], model: Path
) -> None:
    """Every route that is only looked at, of a model that nobody has asked for yet."""
    values = {"model": "lenet5", "name": "lenet5", "version": "1", "device": "worker-1"}
    async with running(tmp_path, workers, model) as real:
        host = real.coordinator

        def state() -> tuple[object, ...]:
            models = [(each.name, each.state, each.plan_version) for each in host.served.statuses()]
            return models, set(host.library._models), set(host.plans.book._entries)

        before, asked = state(), 0
        for method, path in every_route():
            if method not in READING or path == "/page/events":  # it never ends
                continue
            asked += 1
            for query in ({}, {"strategy": "lw"}, {"devices": "1"}, {"wire": "fp16"}):
                answer = await real.http.request(method, filled(path, **values), params=query)
                assert answer.status_code < 502, (path, answer.text)
        assert asked > 20
        assert state() == before
        refused = await real.http.get("/v1/plans/lenet5")
        assert (refused.status_code, "POST" in refused.text) == (404, True)
        (cure,) = [refused.json()["error"]["cure"].rpartition("POST ")[2]]
        assert (await real.http.post(cure)).status_code == 200
        assert (await real.http.get("/v1/plans/lenet5")).status_code == 200
        assert state() != before
