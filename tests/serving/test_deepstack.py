"""DeepStack's clients as they are published, and one that does what Frigate's plugin does."""

from __future__ import annotations

import io
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
import requests
from deepstack import core as deepstack
from PIL import Image

from coordinator.settings import CoordinatorSettings
from models.digits.examples import examples
from tests.serving.camera import LABELS, save_camera
from tests.serving.in_place import InPlace, picture
from tests.serving.processes import Service, serving

pytestmark = pytest.mark.needs_room("coordinator/serving/deepstack")

COCO = ("person", "bicycle", "car", "airplane", "couch", "tv")


@pytest.fixture(scope="module")
def camera(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("camera")
    with serving(folder, ["--model", "digits", "--detector", str(save_camera(folder))]) as running:
        yield running


def scene(width: int = 320, height: int = 320) -> bytes:
    pixels = np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


class Frigate:
    """What its plugin does with every crop of 320x320 pixels."""

    def __init__(self, url: str) -> None:
        self.url = url + "/v1/vision/detection"
        self.session = requests.Session()

    def detect_raw(self, crop: bytes) -> np.ndarray:
        # A generous time: the machine may be busy. The Compose file's own is tested elsewhere.
        response = self.session.post(self.url, files={"image": crop}, timeout=30)
        told = response.json()
        found = np.zeros((20, 6), np.float32)
        if told.get("predictions") is None:
            return found
        for row, each in enumerate(told["predictions"]):
            if each["confidence"] < 0.4:
                break
            if each["label"] not in COCO:
                break
            found[row] = [
                COCO.index(each["label"]),
                float(each["confidence"]),
                each["y_min"] / 320,
                each["x_min"] / 320,
                each["y_max"] / 320,
                each["x_max"] / 320,
            ]
        return found


def test_frigate_gets_rows_that_it_can_use(camera: Service) -> None:
    frigate = Frigate(camera.url)
    for _ in range(3):
        found = frigate.detect_raw(scene())
        scores = found[:, 1]
        assert (scores > 0).all(), "this picture has more than 20 detections above 0.4"
        assert (np.diff(scores) <= 0).all()
        assert set(found[:, 0]) <= {
            float(COCO.index(name)) for name in ("person", "tv", "couch", "car")
        }
        assert ((found[:, 2:] >= 0) & (found[:, 2:] <= 1)).all()
        assert (found[:, 4:] >= found[:, 2:4]).all()
    assert len(frigate.session.adapters["http://"].poolmanager.pools) == 1


def test_every_answer_has_its_length(camera: Service) -> None:
    for body in (scene(), b"no picture"):
        response = requests.post(
            camera.url + "/v1/vision/detection", files={"image": body}, timeout=30
        )
        assert int(response.headers["Content-Length"]) == len(response.content)
        assert "Transfer-Encoding" not in response.headers


def test_the_published_client_of_home_assistant(camera: Service) -> None:
    host, port = camera.host_port.split(":")
    objects = deepstack.DeepstackObject(ip=host, port=int(port), timeout=30, min_confidence=0.5)
    found = objects.detect(scene(640, 360))
    assert found
    assert all(0.5 <= each["confidence"] <= 1 for each in found)
    assert set(deepstack.get_objects(found)) <= {"person", "tv", "couch", "car"}
    assert all(
        isinstance(each[edge], int)
        for each in found
        for edge in ("x_min", "y_min", "x_max", "y_max")
    )
    assert all(each["x_max"] <= 640 and each["y_max"] <= 360 for each in found)


def test_custom_models_keep_their_own_labels(camera: Service) -> None:
    host, port = camera.host_port.split(":")
    digits = deepstack.DeepstackObject(ip=host, port=int(port), timeout=30, custom_model="digits")
    sheet = examples()[0].path.read_bytes()
    found = digits.detect(sheet)
    assert {each["label"] for each in found} <= set("0123456789")
    assert len(found) > 5
    own = deepstack.DeepstackObject(ip=host, port=int(port), timeout=30, custom_model="camera")
    assert {each["label"] for each in own.detect(scene())} <= set(LABELS)
    listed = requests.post(camera.url + "/v1/vision/custom/list", timeout=30).json()
    assert (listed["success"], set(listed["models"])) == (True, {"digits", "camera"})
    assert requests.get(camera.url + "/v1/status/ping", timeout=30).json()["success"] is True


def test_blue_iris_lists_models_and_asks_one_with_its_own_threshold(camera: Service) -> None:
    """Its requests: an endless session, a JPEG called `image`, the confidence as text."""
    with requests.Session() as session:
        assert session.get(camera.url + "/v1/status/ping", timeout=30).json()["success"] is True
        listed = session.post(camera.url + "/v1/vision/custom/list", timeout=30).json()
        for path in ("detection", *(f"custom/{name}" for name in listed["models"])):
            answer = session.post(
                f"{camera.url}/v1/vision/{path}",
                files={"image": ("snapshot.jpg", scene(640, 360), "image/jpeg")},
                data={"min_confidence": "0.60"},
                timeout=30,
            ).json()
            assert (answer["success"], answer["code"]) == (True, 200)
            assert all(each["confidence"] >= 0.6 for each in answer["predictions"])
            assert answer["count"] == len(answer["predictions"])
            assert {"inferenceMs", "processMs", "moduleId", "command"} <= set(answer)


def test_the_same_boxes_as_our_own_interface(camera: Service) -> None:
    sheet = examples()[0].path.read_bytes()
    theirs = requests.post(
        camera.url + "/v1/vision/custom/digits", files={"image": sheet}, timeout=30
    ).json()
    ours = requests.post(camera.url + "/v1/models/digits/infer", data=sheet, timeout=30).json()
    for row, each in zip(theirs["predictions"], ours["predictions"], strict=True):
        edges = [row[edge] for edge in ("x_min", "y_min", "x_max", "y_max")]
        assert edges == [round(edge) for edge in each["box"]]
        assert row["label"] == each["label"]
    assert theirs["count"] == len(theirs["predictions"])
    assert theirs["code"] == 200
    assert theirs["timestampUTC"].endswith("GMT")


# ---------------------------------------------------------------- errors


async def refused(http: httpx.AsyncClient, path: str, status: int, **sent) -> str:
    response = await http.post("/v1/vision" + path, **sent)
    told = response.json()
    assert response.status_code == status, response.text
    assert (told["success"], told["code"], set(told)) == (
        False,
        status,
        {"success", "error", "code"},
    )
    return told["error"]


async def test_no_detector_is_never_digits(http: httpx.AsyncClient, coordinator: InPlace) -> None:
    files = {"image": picture()}
    error = await refused(http, "/detection", 500, files=files)
    assert "no object detector is configured" in error
    assert "--detector" in error
    coordinator.names.detector = "digits"
    assert "reads handwriting" in await refused(http, "/detection", 500, files=files)


async def test_bad_input(http: httpx.AsyncClient, coordinator: InPlace) -> None:
    coordinator.names.detector = "tiny"
    files = {"image": picture()}
    assert "task is classification" in await refused(http, "/detection", 400, files=files)
    assert "task is tensor" in await refused(http, "/custom/bare", 400, files=files)
    assert "no model 'none'" in await refused(http, "/custom/none", 404, files=files)
    assert "no file named 'image'" in await refused(http, "/detection", 400, files={"x": b"y"})
    for wrong in ("much", "nan", "-1", "40"):
        data = {"min_confidence": wrong}
        assert "min_confidence" in await refused(http, "/detection", 400, files=files, data=data)
    await refused(http, "/detection", 415, content=picture())
    await refused(http, "/face", 404, files=files)
    broken = {"Content-Type": "multipart/form-data; boundary=x"}
    await refused(http, "/detection", 400, content=b"--y\r\nnonsense", headers=broken)
    coordinator.fails_with = RuntimeError("the secret is hunter2")
    limit = CoordinatorSettings().max_body_bytes
    assert limit > coordinator.settings.max_body_bytes
    await refused(
        http, "/detection", 413, files={"image": bytes(coordinator.settings.max_body_bytes)}
    )
    ping = await http.get("/v1/status/ping")
    assert ping.json()["success"] is True
