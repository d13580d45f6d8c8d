"""Every decoder is bounded before it allocates: what a real coordinator's memory grows by, for
small requests that claim to be large ones, and for the largest that are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import httpx
import onnx
import psutil
import pytest

from coordinator.devices import children
from coordinator.settings import CoordinatorSettings
from tests.serving.bombs import BOMBS, Bomb, messages
from tests.serving.in_place import tiny_model
from tests.serving.processes import Service, serving, wait

MOST_BYTES = 3 * CoordinatorSettings().max_body_bytes
# None takes two seconds of CPU; what the machine does beside is not ours.
PATIENCE_S = 60.0
# What stays: modules that are loaded at first use, caches, the heap's fragments. Of all the forms
# that are refused, less than two.
LEFT_BYTES = 96 << 20


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("decoders")
    (folder / "repository" / "stored" / "1").mkdir(parents=True)
    onnx.save(tiny_model(), folder / "repository" / "stored" / "1" / "model.onnx")
    flags = ["--model", "digits", "--model-repository", str(folder / "repository")]
    with serving(folder, flags, start=children.start) as running:
        yield running


@pytest.fixture(scope="module")
def idle_bytes(alone: Service) -> int:
    """The coordinator's resident memory before its first large request."""
    return resident_bytes(alone)


@pytest.fixture
def rested(alone: Service, idle_bytes: int) -> Service:
    """When what the request before took is returned to the system."""
    wait_for_rest(alone, idle_bytes)
    return alone


def wait_for_rest(service: Service, idle_bytes: int) -> None:
    try:
        wait(lambda: resident_bytes(service) - idle_bytes < LEFT_BYTES)
    except AssertionError:
        info = psutil.Process(service.coordinator.process.pid).memory_full_info()
        pytest.fail(f"{info} are held, {idle_bytes} resident when idle")


def resident_bytes(service: Service) -> int:
    return psutil.Process(service.coordinator.process.pid).memory_info().rss


def grown_bytes(service: Service, act: Callable[[], object]) -> int:
    """Peak of the coordinator's resident memory while `act` runs, above what it was."""
    pid, before = service.coordinator.process.pid, resident_bytes(service)
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is counted from here
    act()
    status = Path(f"/proc/{pid}/status").read_text()
    return (int(status.partition("VmHWM:")[2].split()[0]) << 10) - before


def cpu_s(service: Service) -> float:
    spent = psutil.Process(service.coordinator.process.pid).cpu_times()
    return spent.user + spent.system


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda each: each.name)
def test_no_request_takes_more_memory_than_three_bodies(rested: Service, bomb: Bomb) -> None:
    body, before_s = bomb.body(), cpu_s(rested)

    def send() -> None:
        sent = httpx.post(
            rested.url + bomb.path, content=body, headers=dict(bomb.headers), timeout=PATIENCE_S
        )
        assert sent.status_code in (200, 400, 413), sent.text
        assert "inside imbrex" not in sent.text

    assert grown_bytes(rested, send) < MOST_BYTES
    assert cpu_s(rested) - before_s < 2.0
    assert rested.get("/readyz")


MESSAGES = messages()


@pytest.mark.parametrize("name", MESSAGES)
def test_no_message_takes_more_memory_than_three_bodies(rested: Service, name: str) -> None:
    def send() -> None:
        options = [("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(rested.grpc, options=options) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            with pytest.raises(grpc.RpcError) as refused:
                call(MESSAGES[name], timeout=PATIENCE_S)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    assert grown_bytes(rested, send) < MOST_BYTES


def test_a_packed_message_is_not_unpacked_beyond_the_limit(rested: Service) -> None:
    def send() -> None:
        options = [("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(rested.grpc, options=options) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            with pytest.raises(grpc.RpcError) as refused:
                call(bytes(400 << 20), timeout=PATIENCE_S, compression=grpc.Compression.Gzip)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    assert grown_bytes(rested, send) < MOST_BYTES


@pytest.mark.needs_room("coordinator/serving/oip")
def test_a_bomb_would_be_seen(rested: Service) -> None:
    """What is measured here grows when something is held."""
    body = bytes(60 << 20)
    slow = httpx.Client(timeout=PATIENCE_S)

    def send() -> None:
        slow.post(f"{rested.url}/v2/models/stored/infer", content=body)

    assert grown_bytes(rested, send) > 40 << 20
    slow.close()


def test_refused_bodies_are_not_kept(alone: Service, idle_bytes: int) -> None:
    forms = [each for each in BOMBS if each.name.startswith("form-")]
    for bomb in 2 * forms:
        httpx.post(
            alone.url + bomb.path,
            content=bomb.body(),
            headers=dict(bomb.headers),
            timeout=PATIENCE_S,
        )
    wait_for_rest(alone, idle_bytes)
