"""How often one caller may ask, on every surface."""

from __future__ import annotations

import dataclasses
from http import HTTPStatus

import grpc
import httpx
import pytest
from structlog.testing import capture_logs

from coordinator.serving.app import create_app
from coordinator.serving.common.access import Access
from coordinator.serving.common.keys import (
    BURST_S,
    MAX_CALLERS,
    Keys,
    RateLimiter,
    Role,
    TooManyRequests,
    neighbourhood,
)
from coordinator.serving.oip.inference_service import InferenceService
from coordinator.serving.oip.rpc import RpcServer
from coordinator.settings import CoordinatorSettings
from coordinator.trust.cluster_state import ClusterState
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from protos.errors import BadRequest
from tests.serving.in_place import InPlace
from tests.serving.routes import OPEN

PER_S = 4.0
BURST = int(PER_S * BURST_S)


def taken(rates: RateLimiter, caller: str, count: int, now: float) -> int:
    """How many of these requests were let through."""
    passed = 0
    for _ in range(count):
        try:
            rates.take(caller, now)
            passed += 1
        except TooManyRequests:
            pass
    return passed


def test_a_bucket_empties_and_fills_again() -> None:
    rates = RateLimiter(PER_S)
    assert taken(rates, "camera", 20, now=100.0) == BURST
    with pytest.raises(TooManyRequests) as refused:
        rates.take("camera", 100.0)
    assert refused.value.retry_after_s == pytest.approx(1 / PER_S)
    assert taken(rates, "camera", 20, now=100.5) == 2
    assert taken(rates, "camera", 20, now=1000.0) == BURST


def test_callers_have_buckets_of_their_own_and_there_is_a_cap() -> None:
    rates = RateLimiter(PER_S)
    assert taken(rates, "one", 20, now=0.0) == BURST
    assert taken(rates, "other", 20, now=0.0) == BURST
    for number in range(MAX_CALLERS + 10):
        rates.take(f"{number}", 0.0)
    assert len(rates._buckets) == MAX_CALLERS


def test_zero_is_no_limit() -> None:
    assert taken(RateLimiter(0.0), "camera", 10_000, now=0.0) == 10_000


def test_addresses_of_one_network_are_one_caller() -> None:
    assert neighbourhood("2001:db8::1") == neighbourhood("2001:db8::ffff") == "2001:db8::/64"
    assert neighbourhood("2001:db8:0:1::1") != neighbourhood("2001:db8::1")
    assert neighbourhood("::ffff:192.168.1.7") == neighbourhood("192.168.1.7") == "192.168.1.7"
    assert neighbourhood("fe80::1%eth0") == "fe80::/64"


def test_guesser_of_keys_is_slowed_down_and_the_holder_is_not(tmp_path) -> None:
    keys = Keys(ClusterState(tmp_path))
    good = keys.add("camera", Role.INFER)
    access = Access(keys, PER_S, clock=lambda: 0.0)
    for _ in range(BURST):
        with pytest.raises(BadRequest, match="unknown API key"):
            access.admit("imbrex_guess", Role.INFER, "192.168.1.66")
    with pytest.raises(TooManyRequests):
        access.admit("imbrex_guess", Role.INFER, "192.168.1.66")
    for _ in range(BURST):
        access.admit(good, Role.INFER, "192.168.1.66")
    with pytest.raises(TooManyRequests):  # from wherever it is used
        access.admit(good, Role.INFER, "192.168.1.7")


@pytest.fixture
async def http(tmp_path):
    plain = InPlace()
    settings = plain.settings.model_copy(update={"state_dir": tmp_path, "rate_per_s": 0.001})
    app = create_app(dataclasses.replace(plain, settings=settings))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.mark.needs_room("coordinator/serving/deepstack")
@pytest.mark.needs_room("coordinator/serving/oip")
@pytest.mark.needs_room("coordinator/serving/page")
async def test_refusal_by_rate_has_the_shape_of_its_surface(http) -> None:
    assert (await http.get("/v1/models")).is_success
    with capture_logs() as logs:
        for path, told in (
            ("/v1/models", '"code":"too_many_requests"'),
            ("/v2", '{"error":"more than 0.001 requests a second'),
            ("/v1/vision/custom/list", '"success":false'),
            ("/", '"code":"too_many_requests"'),
        ):
            refused = await http.get(path)
            assert refused.status_code == HTTPStatus.TOO_MANY_REQUESTS, path
            assert told in refused.text, refused.text
            assert int(refused.headers["Retry-After"]) > 900
    assert logs == []  # a flood does not fill the log
    refused = await http.post("/v1/vision/custom/tiny", files={"image": b"x"})
    assert refused.status_code == HTTPStatus.TOO_MANY_REQUESTS
    for path in OPEN:
        assert (await http.get(path)).status_code == HTTPStatus.OK


async def test_the_inference_protocols_grpc_counts_too(tmp_path) -> None:
    access = Access(Keys(ClusterState(tmp_path)), PER_S, clock=lambda: 0.0)
    server = RpcServer(InferenceService(InPlace()), access, CoordinatorSettings())
    address = await server.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(BURST):
            await stub.RepositoryIndex(pb.RepositoryIndexRequest())
        with pytest.raises(grpc.aio.AioRpcError, match="requests a second") as refused:
            await stub.RepositoryIndex(pb.RepositoryIndexRequest())
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert [
            "requests a second" in answer.error_message
            async for answer in stub.ModelStreamInfer(iter([pb.ModelInferRequest()] * 2))
        ] == [True, True]
        assert (await stub.ServerLive(pb.ServerLiveRequest())).live
    await server.stop()
    # The same caller over HTTP has one bucket.
    with pytest.raises(TooManyRequests):
        access.admit(None, Role.INFER, "127.0.0.1")
