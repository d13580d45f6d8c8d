"""A model whose answers have NaN or infinities, over every interface, on real processes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import numpy as np
import onnx
import pytest

from benchmarks.store import free_port
from coordinator.answers import ModelStatus
from coordinator.doctor.findings import of_heads
from coordinator.serving.common import names
from models.onnx_file.importer import load_graph
from models.vision.model_families import About, described, head_for
from models.vision.sidecar import dump
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from tests.serving.frigate_detector import ZEROS, Detector
from tests.serving.in_place import picture
from tests.serving.processes import Service, serving, wait

SHAPE = (1, 3, 64, 64)
# Three classes: their scores (1, 3) from the mean of the picture.
CLASSIFIER = """
<ir_version: 8, opset_import: ["" : 13]>
classes (float[1,3,64,64] image) => (float[1,3] scores)
<float far = {1000}, float[3] first = {1000, 0, 0}, float[3] others = {0, 1, 1}> {
  mean = GlobalAveragePool(image)
  flat = Flatten(mean)
  size = Abs(flat)
  %s
}
"""
CLASSIFIERS = {
    "nan": "less = Sub(size, far) scores = Sqrt(less)",
    "infinite": "more = Add(size, first) scores = Exp(more)",
    "minus": "power = Exp(size) some = Mul(power, others) scores = Log(some)",
}
# A YOLOv8 of two classes: 64 boxes.
DETECTOR = """
<ir_version: 8, opset_import: ["" : 13]>
boxes (float[1,3,64,64] image) => (float[1,6,64] output0)
<float far = {1000}, int64[3] shape = {1, 6, 64}> {
  grid = Conv<strides = [8, 8], kernel_shape = [8, 8]>(image, k)
  size = Abs(grid)
  less = Sub(size, far)
  root = Sqrt(less)
  output0 = Reshape(root, shape)
}
"""


def saved(folder: Path, name: str, text: str) -> Path:
    """The model and its sidecar."""
    model = onnx.parser.parse_model(text)
    if name == "boxes":
        values = np.full((6, 3, 8, 8), 1 / 192, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, "k"))
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    graph = load_graph(model, name)
    task = "detection" if name == "boxes" else "classification"
    labels = ("ant", "bee") if name == "boxes" else ("ant", "bee", "cat")
    head = head_for(graph, task, labels, "unit", {})
    sidecar = described(graph, task, head, labels, "unit", About(name, path.name))
    path.with_suffix(".json").write_text(dump(sidecar))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def endpoint() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def service(folder: Path, endpoint: str) -> Iterator[Service]:
    flags = ["--frigate-zmq", endpoint]
    for name, end in CLASSIFIERS.items():
        flags += ["--model", str(saved(folder, name, CLASSIFIER % end))]
    boxes = saved(folder, "boxes", DETECTOR)
    flags += ["--model", str(boxes), "--detector", str(boxes)]
    with serving(folder, flags) as running:
        yield running


def said(answer: httpx.Response, *texts: str, status: int = 422) -> None:
    assert answer.status_code == status, answer.text
    for text in (*texts, "(f32)"):
        assert text in answer.text
    assert "went wrong inside" not in answer.text


def counted(service: Service, model: str, outcome: str = "not_finite_answer") -> float:
    lines = httpx.get(f"{service.url}/metrics").text.splitlines()
    start = f'imbrex_requests_total{{model="{model}",outcome="{outcome}"}} '
    return sum(float(line.removeprefix(start)) for line in lines if line.startswith(start))


def tensor() -> bytes:
    file = io.BytesIO()
    np.savez(file, image=np.ones(SHAPE, np.float32))
    return file.getvalue()


@pytest.mark.parametrize("model", ["nan", "infinite", "boxes"])
@pytest.mark.parametrize("accept", ["application/json", "image/png"])
def test_picture_is_answered_with_the_error(service: Service, model: str, accept: str) -> None:
    before, good = counted(service, model), counted(service, model, "ok")
    url, headers = f"{service.url}/v1/models/{model}/infer", {"Accept": accept}
    answer = httpx.post(url, content=picture(), headers=headers, timeout=60)
    said(answer, "the model's answer has NaN in the scores", '"code":"not_finite_answer"')
    assert counted(service, model) == before + 1
    assert counted(service, model, "ok") == good


def test_several_pictures_are_answered_with_the_error(service: Service) -> None:
    before = counted(service, "nan")
    files = [("image", picture()), ("image", picture())]
    answer = httpx.post(f"{service.url}/v1/models/nan/infer", files=files, timeout=60)
    said(answer, "the model's answer has NaN in the scores")
    assert counted(service, "nan") == before + 2


@pytest.mark.needs_room("coordinator/serving/oip")
def test_the_page_and_the_statistics(service: Service) -> None:
    def counts() -> tuple[int, int]:
        (model,) = service.get("/v2/models/nan/stats")["model_stats"]
        return model["inference_count"], model["inference_stats"]["fail"]["count"]

    good, failed = counts()
    httpx.post(f"{service.url}/v1/models/nan/infer", content=picture(), timeout=60)
    assert counts() == (good, failed + 1)
    with httpx.stream("GET", f"{service.url}/page/events", timeout=60) as events:
        lines = iter(events.iter_lines())
        told = next(line for line in lines if '"outcome":"not_finite_answer"' in line)
    assert "the model's answer has NaN" in told


def test_infinities_that_a_head_understands_are_answered(service: Service) -> None:
    url = f"{service.url}/v1/models/minus/infer"
    answer = httpx.post(url, content=picture(), timeout=60).json()
    assert {each["label"] for each in answer["predictions"][:2]} == {"bee", "cat"}
    assert (counted(service, "minus"), counted(service, "minus", "ok")) == (0, 1)


def test_tensors_are_said_in_json_and_sent_as_they_are_otherwise(service: Service) -> None:
    url = f"{service.url}/v1/models/infinite/infer"
    headers = {"Content-Type": names.NPZ, "Accept": "application/json"}
    before = counted(service, "infinite")
    answer = httpx.post(url, content=tensor(), headers=headers, timeout=60)
    said(answer, "infinities in 'scores', which JSON", names.NPZ)
    assert counted(service, "infinite") == before + 1
    answer = httpx.post(url, content=tensor(), headers=headers | {"Accept": names.NPZ}, timeout=60)
    assert np.isposinf(np.load(io.BytesIO(answer.content))["scores"][0, 0])


@pytest.mark.needs_room("coordinator/serving/deepstack")
def test_deepstack_says_that_the_answer_has_nan(service: Service) -> None:
    before = counted(service, "boxes")
    for path in ("detection", "custom/boxes"):
        url = f"{service.url}/v1/vision/{path}"
        answer = httpx.post(url, files={"image": picture()}, timeout=60)
        said(answer, "the model's answer has NaN")
        assert answer.json()["success"] is False
    assert counted(service, "boxes") == before + 2


@pytest.mark.needs_room("coordinator/serving/oip")
def test_open_inference_protocol(service: Service) -> None:
    url, before = f"{service.url}/v2/models/nan/infer", counted(service, "nan")
    given = {"name": "image", "datatype": "FP32", "shape": SHAPE, "data": np.ones(SHAPE).tolist()}
    for output in ({"name": "scores"}, {"name": "scores", "parameters": {"classification": 1}}):
        answer = httpx.post(url, json={"inputs": [given], "outputs": [output]}, timeout=60)
        said(answer, "the model's answer has NaN", status=400)
    assert counted(service, "nan") == before + 2
    output = {"name": "scores", "parameters": {"binary_data": True}}
    answer = httpx.post(url, json={"inputs": [given], "outputs": [output]}, timeout=60)
    assert np.isnan(np.frombuffer(answer.content[-12:], np.float32)).all()


def test_grpc_says_that_the_answer_has_nan(service: Service) -> None:
    message = pb.ModelInferRequest(model_name="nan")
    message.inputs.add(name="image", datatype="FP32", shape=SHAPE)
    message.raw_input_contents.append(np.ones(SHAPE, np.float32).tobytes())
    with grpc.insecure_channel(service.grpc) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        raw = stub.ModelInfer(message).raw_output_contents[0]
        assert np.isnan(np.frombuffer(raw, np.float32)).all()
        before = counted(service, "nan")
        message.outputs.add(name="scores").parameters["classification"].int64_param = 1
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(message)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "the model's answer has NaN" in caught.value.details()
    assert counted(service, "nan") == before + 1


def test_frigate_gets_no_boxes_and_the_log_says_why(
    service: Service, endpoint: str, folder: Path
) -> None:
    before = counted(service, "boxes")
    detector = Detector(endpoint, folder / "boxes.onnx")
    try:
        assert detector.initialise()
        rows = detector.detect(np.ones(SHAPE, np.float32))
    finally:
        detector.close()
    assert (rows == ZEROS).all()
    log = service.coordinator.log
    wait(lambda: "the model's answer has NaN" in log.read_text())
    assert counted(service, "boxes") == before + 1


def test_doctor_says_that_answers_are_not_finite(service: Service) -> None:
    assert of_heads([ModelStatus("yard", True, "ready", "detection", True, 1)]) == []
    findings = service.get("/v1/doctor")["findings"]
    (finding,) = [
        each
        for each in findings
        if each["code"] == "not_finite_answers" and " nan " in each["cause"]
    ]
    assert "(f32)" in finding["cure"]
