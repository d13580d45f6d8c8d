"""Frigate's `zmq` detector on real processes, and what a stranger may send to its socket."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import zmq
import zmq.asyncio
from onnx import TensorProto

from benchmarks.store import free_port
from coordinator.serving.frigate import detector_messages
from coordinator.serving.frigate.model_folder import MOST_MODELS, ModelFolder
from coordinator.serving.frigate.outputs import rows_of, selections_of
from coordinator.serving.frigate.server import MOST_PARTS, DetectorConnections, _feeds, _received
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel
from models.tensors.selection import dense
from models.vision.box_lists import YoloBoxes
from models.vision.sidecar import load as load_sidecar
from models.vision.sidecar import sidecar_path
from protos.errors import BadRequest
from tests.cli.run_cli import imbrex_forked
from tests.models.test_pixels import taking
from tests.serving.browser import browser, needs_browser, text
from tests.serving.frigate_detector import ZEROS, Detector, save_detector
from tests.serving.processes import Service, serving, wait

LIMIT_BYTES = 4_000_000
CROPS = 60


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_detector(tmp_path_factory.mktemp("frigate"))


@pytest.fixture(scope="module")
def endpoints() -> list[str]:
    return [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, endpoints: list[str]) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    config = folder / "coordinator.toml"
    config.write_text(f"max_body_bytes = {LIMIT_BYTES}\n")
    flags = ["--config", str(config)]
    for each in endpoints:
        flags += ["--frigate-zmq", each]
    with serving(folder, flags) as running:
        yield running


@pytest.fixture
def detector(service: Service, endpoints: list[str], model: Path) -> Iterator[Detector]:
    made = Detector(endpoints[0], model)
    yield made
    made.close()


def crops(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((count, 1, 3, 32, 32), np.float32) * 4


def expected(model: Path, crop: np.ndarray) -> np.ndarray:
    found = WholeModel(onnx.load(model)).run({"images": crop})
    rows = rows_of("yologeneric", list(found.values()), (32, 32))
    return np.vstack([rows, ZEROS])[:20]


def test_frigate_sends_its_model_and_gets_rows(detector: Detector, model: Path) -> None:
    assert detector.initialise()
    seen = 0
    for crop in crops(3):
        rows = detector.detect(crop)
        assert rows.shape == (20, 6)
        np.testing.assert_allclose(rows, expected(model, crop), atol=1e-4)
        seen += int((rows[:, 1] > 0).sum())
    assert seen > 0
    assert np.abs(expected(model, crops(2)[0]) - expected(model, crops(2)[1])).max() > 1e-3


def test_the_doctor_says_whether_frigate_is_answered_in_time(
    detector: Detector, service: Service
) -> None:
    assert detector.initialise()
    (row,) = [each for each in service.get("/v1/doctor")["checks"] if each["what"] == "frigate"]
    assert row["device"] == "coordinator"
    assert row["seen"].endswith("with 2 detectors")


@needs_browser
def test_the_page_says_whether_frigate_is_answered_in_time(
    detector: Detector, service: Service
) -> None:
    assert detector.initialise()
    with browser() as driver:
        driver.get(service.url)
        wait(lambda: re.match(r"Frigate: \d+ ms predicted, .*time", text(driver, "frigate")))
        assert not driver.execute_script("return document.getElementById('frigate').hidden")


def test_a_picture_with_channels_last_is_turned(detector: Detector, model: Path) -> None:
    assert detector.initialise()
    (crop,) = crops(1)
    rows = detector.detect(np.ascontiguousarray(crop.transpose(0, 2, 3, 1)))
    np.testing.assert_allclose(rows, expected(model, crop), atol=1e-4)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "CHW", "HWC"])
def test_a_model_takes_frigates_picture_in_any_layout(layout: str) -> None:
    graph = load_graph(taking(layout, 3, TensorProto.UINT8))
    crop = np.random.default_rng(1).integers(0, 256, (1, 8, 6, 3), np.uint8)
    wanted = np.moveaxis(crop, 3, 1) if layout.endswith("W") else crop
    wanted = wanted if "N" in layout else wanted[0]
    for sent in (crop, crop.transpose(0, 3, 1, 2)):
        feeds, size = _feeds(graph, sent)
        assert size == (8, 6)
        assert np.array_equal(feeds["x"], wanted)
        assert feeds["x"].flags.c_contiguous
    with pytest.raises(BadRequest, match="input_tensor and input_dtype"):
        _feeds(graph, crop.astype(np.float32))


def test_detectors_are_answered_though_a_worker_is_killed(
    service: Service, endpoints: list[str], model: Path
) -> None:
    found = expected(model, crops(1)[0])
    assert found.any()
    (crop,) = crops(1)

    def ask(endpoint: str) -> tuple[int, int]:
        frigate = Detector(endpoint, model)
        try:
            assert frigate.initialise()
            empty = 0
            for number in range(CROPS):
                if number == CROPS // 2 and endpoint == endpoints[0]:
                    service.workers[1].process.kill()
                empty += not np.allclose(frigate.detect(crop), found, atol=1e-4)
            return empty, frigate.timeouts
        finally:
            frigate.close()

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(ask, endpoints))
    assert sum(empty for empty, _ in outcomes) <= 5
    assert sum(timeouts for _, timeouts in outcomes) == 0


@pytest.mark.parametrize(
    "frames",
    [
        (b"",),
        (b"not JSON",),
        (b"{}",),
        (b"[" * 4000,),
        (b"{" + b" " * 10_000 + b"}", b"data"),
        (b'{"shape": [1, 3, 32, 32], "dtype": "float32"}', b"short"),
        (b'{"shape": [65536, 65536, 65536], "dtype": "float32"}', b"short"),
        (b'{"shape": [-1], "dtype": "uint8"}', b""),
        (b'{"shape": [4], "dtype": "object"}', b"data"),
        (b'{"shape": [4], "dtype": "uint8", "model_type": "other"}', b"data"),
        (b'{"shape": [2, 2], "dtype": "uint8"}', b"data"),
        (b'{"model_request": true, "model_name": "../../etc/passwd"}',),
        (b'{"model_data": true, "model_name": "/tmp/x.onnx"}', b"x"),
        (b'{"model_data": true, "model_name": "x.onnx"}',),
        (b"{}", b"", b"", b""),
    ],
)
def test_malformed_message_gets_zeros_and_the_service_goes_on(
    detector: Detector, frames: tuple[bytes, ...]
) -> None:
    assert detector.raw(*frames) == detector_messages.NOTHING
    assert detector.initialise()


async def test_of_a_message_with_many_parts_a_few_are_kept() -> None:
    context: zmq.asyncio.Context = zmq.asyncio.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    try:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        dealer.connect(f"tcp://127.0.0.1:{port}")
        for count in (1, 4, 5, 100_000):
            await dealer.send_multipart([b"x"] * count)
            await dealer.send(b"next")
            connection, (identity, *parts) = await _received(router)
            assert parts == [b"x"] * min(count, MOST_PARTS - 1)
            assert await _received(router) == (connection, [identity, b"next"])
    finally:
        context.destroy(linger=0)


async def test_request_that_its_detector_gave_up_is_cancelled() -> None:
    context: zmq.asyncio.Context = zmq.asyncio.Context()
    router = context.socket(zmq.ROUTER)
    address = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
    connections, works = DetectorConnections(router), []
    following = asyncio.create_task(connections.follow())

    async def asked() -> zmq.asyncio.Socket:
        detector = context.socket(zmq.REQ)
        detector.connect(address)
        await detector.send(b"picture")
        connection, _ = await _received(router)
        works.append(asyncio.create_task(asyncio.sleep(60)))
        connections.answering(connection, works[-1])
        return detector

    try:
        async with asyncio.timeout(60):
            staying, leaving = await asked(), await asked()
            leaving.close(linger=0)
            with pytest.raises(asyncio.CancelledError):
                await works[1]
            # Connections that get the numbers of closed ones, before anybody follows.
            following.cancel()
            for _ in range(20):
                (await asked()).close(linger=0)
            again = await asked()
            staying_too = [works[0], works[-1]]
            assert not any(each.cancelling() for each in staying_too)
            for each in (staying, again):
                each.close(linger=0)
    finally:
        for each in works:
            each.cancel()
        context.destroy(linger=0)


def test_message_of_many_parts_gets_zeros_and_the_service_goes_on(detector: Detector) -> None:
    assert detector.raw(*[b"{}"] * 100_000) == detector_messages.NOTHING
    assert detector.initialise()


def test_a_file_that_is_no_model_is_not_kept(detector: Detector, service: Service) -> None:
    header = {"model_data": True, "model_name": "nonsense.onnx"}
    (told,) = detector.raw(json.dumps(header).encode(), b"nonsense")
    assert json.loads(told) == {"model_saved": True, "model_loaded": False}
    asked = {"model_request": True, "model_name": "nonsense.onnx"}
    (told,) = detector.raw(json.dumps(asked).encode())
    assert json.loads(told) == {"model_available": False, "model_loaded": False}
    assert detector.initialise()


def test_a_message_beyond_the_limit_is_never_taken_in(
    service: Service, endpoints: list[str], model: Path, detector: Detector
) -> None:
    stranger = Detector(endpoints[1], model, timeout_ms=300)
    header = {"model_data": True, "model_name": "large.onnx"}
    with pytest.raises(zmq.Again):
        stranger.raw(json.dumps(header).encode(), bytes(LIMIT_BYTES + 1))
    stranger.close()
    assert detector.initialise()
    wait(lambda: service.get("/readyz") or None)


def test_only_the_latest_models_are_kept(tmp_path: Path) -> None:
    kept = ModelFolder(tmp_path)
    paths = [kept.add(f"model-{number}.onnx", bytes([number])) for number in range(MOST_MODELS + 2)]
    assert len(list(tmp_path.iterdir())) == MOST_MODELS
    assert not paths[0].exists()
    assert kept.find("model-0.onnx") is None
    assert kept.find("") == paths[-1]


def test_a_detector_is_kept_with_what_is_known_of_its_boxes(tmp_path: Path, model: Path) -> None:
    kept = ModelFolder(tmp_path)
    path = kept.add("crops.onnx", model.read_bytes())
    sidecar = load_sidecar(sidecar_path(path))
    assert isinstance(sidecar.head, YoloBoxes)
    assert sidecar.labels == ("0", "1", "2")
    kept.add("other.onnx", model.read_bytes())
    for number in range(MOST_MODELS):
        kept.add(f"model-{number}.onnx", bytes([number]))
    assert len(list(tmp_path.iterdir())) == MOST_MODELS


@pytest.mark.parametrize(
    ("kind", "shape", "axis"), [("yologeneric", (1, 84, 2100), 2), ("yolox", (1, 2100, 85), 1)]
)
def test_rows_are_made_of_what_is_selected_alone(kind, shape, axis) -> None:
    raw = np.random.default_rng(0).random(shape, np.float32)
    ((_, selection),) = selections_of(kind, {"output": shape}).items()
    chosen = selection.chosen(raw)[: raw.shape[axis] // 2]
    likely = np.isin(np.arange(shape[axis]), chosen)
    raw = np.moveaxis(np.moveaxis(raw, axis, 0) * np.where(likely, 1, 0.3)[:, None, None], 0, axis)
    raw = raw.astype(np.float32)
    chosen = selection.chosen(raw)
    assert 20 < len(chosen) < shape[axis]
    sparse = dense(raw.take(chosen, axis), chosen, axis, shape)
    assert not np.array_equal(sparse, raw)
    size = (320, 320)
    np.testing.assert_array_equal(rows_of(kind, [sparse], size), rows_of(kind, [raw], size))


@pytest.mark.parametrize("kind", ["ssd", "yolonas", "rfdetr", "dfine"])
def test_outputs_of_other_kinds_are_read_whole(kind) -> None:
    assert not selections_of(kind, {"output": (1, 84, 2100)})


def boxes(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array(rows, np.float32)


def padded(rows: np.ndarray) -> np.ndarray:
    """With boxes of no score: a network has more boxes than values."""
    return np.pad(rows, ((0, 30), (0, 0)))


def grids() -> list[np.ndarray]:
    """YOLOv7's, with the same box in a cell of 16 pixels: its first anchor is 36 x 75."""
    found = [np.zeros((3, 8, cells, cells), np.float32) for cells in (20, 10, 5)]
    sides = np.sqrt(np.array((40 / 36, 40 / 75))) / 2
    found[1][0, :, 2, 5] = (0.25, 0.5, *sides, 1.0, 0.1, 0.2, 0.9)
    return [each.reshape(1, 24, *each.shape[2:]) for each in found]


@pytest.mark.parametrize(("kind", "left"), [("yologeneric", 1), ("dfine", 1), ("ssd", 2)])
def test_overlapping_boxes_are_left_as_frigate_leaves_them(kind, left) -> None:
    """A van is a car or a truck, and not both."""
    corners, size = ((60, 20, 100, 60), (61, 20, 101, 60)), (160, 160)
    outputs = {
        "yologeneric": [
            padded(boxes((80, 40, 40, 40, 0.9, 0.1), (81, 40, 40, 40, 0.1, 0.8))).T[None]
        ],
        "dfine": [np.array([[0, 1]]), boxes(*corners)[None], boxes((0.9, 0.8))],
        "ssd": [
            boxes(*((y / 160, x / 160, b / 160, r / 160) for x, y, r, b in corners))[None],
            boxes((0, 1)),
            boxes((0.9, 0.8)),
            boxes((2,)),
        ],
    }
    assert len(rows_of(kind, outputs[kind], size)) == left


@pytest.mark.parametrize(
    ("kind", "outputs"),
    [
        ("yologeneric", [padded(boxes((80, 40, 40, 40, 0.1, 0.2, 0.9))).T[None]]),
        ("yologeneric", [padded(boxes((80, 40, 40, 40, 0.1, 0.2, 0.9)))[None]]),
        ("yologeneric", grids()),
        ("yolonas", [boxes((0, 60, 20, 100, 60, 0.9, 2), (0, 0, 0, 0, 0, 0.9, -1))]),
        ("rfdetr", [boxes((0.5, 0.25, 0.25, 0.25))[None], boxes((-9, -9, 0.0, 2.9))[None]]),
        ("dfine", [np.array([[2]]), boxes((60, 20, 100, 60))[None], boxes((0.9,))]),
        ("ssd", [boxes((0, 2, 0.9, 0.375, 0.125, 0.625, 0.375))[None, None]]),
        (
            "ssd",
            [
                boxes((0.125, 0.375, 0.375, 0.625))[None],
                boxes((2,)),
                boxes((0.9,)),
                boxes((1,)),
            ],
        ),
    ],
)
def test_every_kind_of_output_becomes_rows(kind, outputs) -> None:
    rows = rows_of(kind, outputs, (160, 160))
    assert rows.shape == (1, 6)
    assert rows[0, 0] == 2
    assert rows[0, 1] == pytest.approx(0.9, abs=0.05)
    np.testing.assert_allclose(rows[0, 2:], (0.125, 0.375, 0.375, 0.625), atol=1e-5)


def test_yolox_is_decoded_from_its_cells() -> None:
    raw = np.zeros((1, 4 * 4 + 2 * 2 + 1, 5 + 3), np.float32)
    raw[0, 5] = (0.5, 0.5, np.log(2), np.log(2), 1.0, 0.1, 0.2, 0.9)
    (row,) = rows_of("yolox", [raw], (32, 32))
    np.testing.assert_allclose(row, (2, 0.9, 4 / 32, 4 / 32, 20 / 32, 20 / 32), atol=1e-5)


@pytest.mark.parametrize("kind", ["ssd", "yolox", "yolonas", "yologeneric", "rfdetr", "dfine"])
def test_other_outputs_are_refused_with_the_setting_to_change(kind) -> None:
    with pytest.raises(BadRequest, match=kind) as refused:
        rows_of(kind, [np.zeros((1, 2, 3, 5), np.float32), np.zeros((1, 1), np.float32)], (32, 32))
    assert "model_type" in refused.value.cure


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://127.0.0.1",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("udp://127.0.0.1:5555", "tcp://*:5555")
        ),
    ],
)
def test_an_address_that_cannot_be_used_is_named(tmp_path: Path, endpoint: str) -> None:
    flags = ("--port", 0, "--no-mdns", "--no-host-computes", "--state-dir", tmp_path)
    ran = imbrex_forked("coordinator", *flags, "--frigate-zmq", endpoint)
    assert ran.code == 1
    assert endpoint in ran.err
    assert "cure:" in ran.err
