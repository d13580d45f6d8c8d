"""API keys on every surface: who may ask, who may change things, who is refused."""

from __future__ import annotations

import base64
import dataclasses
import hmac
import stat
from http import HTTPStatus
from types import SimpleNamespace

import grpc
import httpx
import pytest
from fastapi import APIRouter
from structlog.testing import capture_logs

from coordinator.serving import app
from coordinator.serving.app import create_app
from coordinator.serving.common.access import Access, asks, orders, rule_of
from coordinator.serving.common.keys import MAX_KEYS, Keys, Role
from coordinator.serving.oip import rpc
from coordinator.serving.oip.inference_service import InferenceService
from coordinator.serving.oip.rpc import RpcServer
from coordinator.settings import CoordinatorSettings
from coordinator.trust import cluster_state as ledger
from coordinator.trust.cluster_state import ClusterState
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from protos.errors import BadConfiguration, BadRequest, Infeasible, NotFound
from tests.cli.run_cli import imbrex
from tests.serving.in_place import InPlace
from tests.serving.routes import OPEN, READING, every_route, every_rule, filled


@pytest.fixture
def keys(tmp_path):
    return Keys(ClusterState(tmp_path))


@pytest.fixture
async def http(keys, tmp_path):
    plain = InPlace()
    settings = plain.settings.model_copy(update={"state_dir": tmp_path})
    app = create_app(dataclasses.replace(plain, settings=settings))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def test_service_without_keys_answers_everybody(http):
    assert (await http.get("/v1/devices")).is_success


@pytest.mark.needs_room("coordinator/serving/oip")
@pytest.mark.parametrize("path", ["/v1/devices", "/v1/models", "/metrics", "/v2", "/v1/plans/tiny"])
async def test_caller_without_a_key_is_refused_once_there_is_one(http, keys, path):
    keys.add("me", Role.ADMIN)
    with capture_logs() as logs:
        refused = await http.get(path)
    assert refused.status_code == HTTPStatus.UNAUTHORIZED
    assert refused.headers["www-authenticate"].startswith("Basic")
    assert [each["event"] for each in logs] == ["client refused"]


@pytest.mark.needs_room("coordinator/serving/deepstack")
@pytest.mark.needs_room("coordinator/serving/oip")
@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/v1/status/ping"]
)
async def test_health_needs_no_key(http, keys, path):
    keys.add("me", Role.ADMIN)
    assert (await http.get(path)).status_code == HTTPStatus.OK


async def test_the_interfaces_description_is_the_same_everywhere_and_needs_no_key(http, keys):
    keys.add("me", Role.ADMIN)
    text = (await http.get("/openapi.json")).raise_for_status().text
    elsewhere = httpx.ASGITransport(create_app(InPlace()))
    async with httpx.AsyncClient(transport=elsewhere, base_url="http://test") as other:
        assert (await other.get("/openapi.json")).text == text


async def test_every_route_but_health_needs_a_key(http, keys):
    keys.add("me", Role.ADMIN)
    answered = set()
    for method, path in every_route():
        form = {"image": b"x"} if method == "POST" else None
        refused = await http.request(method, filled(path), files=form)
        if refused.status_code != HTTPStatus.UNAUTHORIZED:
            answered.add(path)
    assert answered == OPEN


def ways(key):
    login = base64.b64encode(f"anybody:{key}".encode()).decode()
    return [
        {"X-API-Key": key},
        {"Authorization": f"Bearer {key}"},
        {"Authorization": f"bearer {key}"},
        {"Authorization": f"Basic {login}"},
    ]


async def test_a_key_is_taken_in_every_way_that_clients_have(http, keys):
    for headers in ways(keys.add("me", Role.INFER)):
        assert (await http.get("/v1/devices", headers=headers)).is_success
    for headers in [*ways("imbrex_wrong"), {"Authorization": "Basic !"}, {"Authorization": "x"}]:
        refused = await http.get("/v1/devices", headers=headers)
        assert refused.status_code == HTTPStatus.UNAUTHORIZED, headers
        assert "imbrex_wrong" not in refused.text


async def test_the_kept_hash_is_no_key(http, keys, tmp_path):
    keys.add("me", Role.ADMIN)
    (entry,) = ledger.read_entries(tmp_path / "keys.json").values()
    refused = await http.get("/v1/devices", headers={"X-API-Key": entry["sha256"]})
    assert refused.status_code == HTTPStatus.UNAUTHORIZED


@pytest.mark.needs_room("coordinator/serving/oip")
async def test_a_key_to_ask_changes_nothing(http, keys):
    asks = {"X-API-Key": keys.add("camera", Role.INFER)}
    for method, path in (
        ("PUT", "/v1/plans/tiny"),
        ("POST", "/v1/plans/infer"),
        ("DELETE", "/v1/plans/tiny"),
        ("POST", "/v1/devices/pi/profile"),
        ("POST", "/v1/devices/pi/drain"),
        ("POST", "/v1/devices/pi/resume"),
        ("POST", "/v1/models/tiny/baseline"),
        ("POST", "/v2/repository/models/tiny/load"),
        ("POST", "/v2/repository/models/tiny/unload"),
        ("POST", "/v2/repository/models/index/unload"),
    ):
        refused = await http.request(method, path, headers=asks)
        assert refused.status_code == HTTPStatus.FORBIDDEN, path
        assert "admin" in refused.text


async def test_a_revoked_key_ends_at_once(http, keys):
    keys.add("me", Role.ADMIN)
    headers = {"X-API-Key": keys.add("camera", Role.INFER)}
    assert (await http.get("/v1/devices", headers=headers)).is_success
    keys.remove("camera")
    assert (await http.get("/v1/devices", headers=headers)).status_code == HTTPStatus.UNAUTHORIZED


@pytest.mark.needs_room("coordinator/serving/deepstack")
async def test_deepstacks_clients_send_their_key_in_the_form(http, keys):
    key, path = keys.add("frigate", Role.INFER), "/v1/vision/custom/tiny"
    picture = {"image": b"x"}
    for form in ({}, {"api_key": ""}, {"api_key": "wrong"}):
        refused = await http.post(path, files=picture, data=form)
        assert (refused.status_code, refused.json()["success"]) == (401, False)
    assert (await http.post(path, content=b"no form")).status_code not in (200, 404)
    allowed = await http.post(path, files=picture, data={"api_key": key})
    assert "does not find objects" in allowed.json()["error"]


async def test_a_page_of_another_site_cannot_give_orders(http):
    for origin in ("http://evil.example", "null"):
        refused = await http.delete("/v1/plans/tiny", headers={"Origin": origin})
        assert refused.status_code == HTTPStatus.FORBIDDEN
    own = await http.delete("/v1/plans/tiny", headers={"Origin": "http://test"})
    assert own.status_code != HTTPStatus.FORBIDDEN


def test_every_route_says_who_may_call_it():
    rules = {(method, path): rule for method, path, rule in every_rule()}
    assert all(rules.values())
    assert {path for (_, path), rule in rules.items() if rule.role is None} == OPEN
    asking = {
        path
        for (method, path), rule in rules.items()
        if method not in READING and rule.role is Role.INFER
    }
    assert {path.rpartition("/")[2] for path in asking} == {
        "infer",
        "plan",
        "index",
        "detection",
        "list",
        "{model}",
    }
    assert all(
        rule.role is not Role.ADMIN for (method, _), rule in rules.items() if method in READING
    )


def test_no_application_starts_with_a_route_that_says_nothing(monkeypatch):
    room = SimpleNamespace(router=APIRouter())
    monkeypatch.setattr(app, "ROOMS", (room,))
    room.router.get("/said")(asks(lambda: None))
    app.create_app(InPlace())
    room.router.get("/planted")(lambda: None)
    with pytest.raises(AssertionError, match="planted"):
        app.create_app(InPlace())


async def test_a_route_that_says_nothing_is_for_admins(keys, tmp_path):
    plain = InPlace()
    settings = plain.settings.model_copy(update={"state_dir": tmp_path})
    made = create_app(dataclasses.replace(plain, settings=settings))
    made.get("/planted")(lambda: {})
    transport = httpx.ASGITransport(made)
    camera, me = keys.add("camera", Role.INFER), keys.add("me", Role.ADMIN)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        for key, status in ((camera, HTTPStatus.FORBIDDEN), (me, HTTPStatus.OK)):
            answer = await http.get("/planted", headers={"X-API-Key": key})
            assert answer.status_code == status


def test_every_grpc_call_says_who_may_make_it():
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    rules = {each.name: rule_of(getattr(rpc._Calls, each.name)) for each in service.methods}
    assert all(rules.values())
    assert {name for name, rule in rules.items() if rule is orders} == {
        "RepositoryModelLoad",
        "RepositoryModelUnload",
    }
    assert {name for name, rule in rules.items() if rule.role is None} == {
        "ServerLive",
        "ServerReady",
    }


def test_a_shown_key_is_compared_with_all_in_constant_time(keys, monkeypatch):
    secrets = [keys.add(str(number), Role.INFER) for number in range(5)]
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(
        hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or real(a, b)
    )
    for shown in (secrets[0], secrets[-1], "imbrex_wrong", "", None):
        compared.clear()
        held = keys.holder(shown)
        assert (held is not None) == (shown in secrets)
        assert compared == [(64, 64)] * len(secrets)


def test_only_hashes_are_kept_and_for_the_owner_alone(keys, tmp_path):
    secret = keys.add("me", Role.ADMIN)
    file = tmp_path / "keys.json"
    assert secret not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_names_are_unique_and_keys_capped(keys):
    keys.add("me", Role.INFER)
    with pytest.raises(BadRequest, match="a key called 'me'"):
        keys.add("me", Role.ADMIN)
    with pytest.raises(NotFound, match="Known keys: me"):
        keys.remove("you")
    for number in range(MAX_KEYS - 1):
        keys.add(str(number), Role.INFER)
    with pytest.raises(Infeasible):
        keys.add("one more", Role.INFER)


def test_a_damaged_file_opens_nothing(keys, tmp_path):
    (tmp_path / "keys.json").write_text("nonsense")
    with pytest.raises(BadConfiguration):
        keys.require(None, Role.INFER)


def test_the_commands(tmp_path):
    state = ("--state-dir", str(tmp_path))
    made = imbrex("cluster", "key", "me", "--role", "admin", *state, "--json").json()
    assert made["key"].startswith("imbrex_")
    Keys(ClusterState(tmp_path)).require(made["key"], Role.ADMIN)
    listed = imbrex("cluster", "keys", *state, "--json").json()
    assert listed == {"keys": [{"name": "me", "role": "admin"}]}
    imbrex("cluster", "key", "camera", *state)
    assert imbrex("cluster", "revoke", "camera", *state, "--json").json()["keys_left"] == 1
    assert "anyone may do everything" in imbrex("cluster", "revoke", "me", *state).out


async def test_the_inference_protocols_grpc_takes_keys_in_its_metadata(keys):
    server = RpcServer(InferenceService(InPlace()), Access(keys, 0.0), CoordinatorSettings())
    address = await server.start("127.0.0.1", 0)
    asks, admin = keys.add("camera", Role.INFER), keys.add("me", Role.ADMIN)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert (await stub.ServerLive(pb.ServerLiveRequest())).live
        listed, load = pb.RepositoryIndexRequest(), pb.RepositoryModelLoadRequest(model_name="tiny")
        for shown in ((), (("x-api-key", "wrong"),)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.RepositoryIndex(listed, metadata=shown)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await stub.RepositoryIndex(listed, metadata=(("authorization", f"Bearer {asks}"),))
        with pytest.raises(grpc.aio.AioRpcError, match="not change anything"):
            await stub.RepositoryModelLoad(load, metadata=(("x-api-key", asks),))
        with pytest.raises(grpc.aio.AioRpcError) as other:
            await stub.RepositoryModelLoad(load, metadata=(("x-api-key", admin),))
        assert other.value.code() is not grpc.StatusCode.UNAUTHENTICATED
    await server.stop()
