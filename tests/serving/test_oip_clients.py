"""The published Triton client against real processes: what it says is what onnxruntime says."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import numpy as np
import pytest

from models.catalogue import catalogue
from models.run.reference import WholeModel, compare
from tests.serving.in_place import tiny_model
from tests.serving.processes import Service

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tritonclient.http as triton
    import tritonclient.http.aio as triton_aio
    from tritonclient.utils import InferenceServerException

DIGITS_SHAPE = (1, 3, 416, 416)


def random(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(5).random(shape, np.float32)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """An input, and what the whole model says to it."""
    image = random(DIGITS_SHAPE)
    return image, dict(WholeModel(catalogue.load("digits").proto, threads=1).run({"image": image}))


def told(name: str, array: np.ndarray, *, binary: bool = True) -> Any:
    tensor = triton.InferInput(name, list(array.shape), "FP32")
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


@pytest.fixture
def client(service: Service):
    made = triton.InferenceServerClient(service.host_port)
    yield made
    made.close()


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert not client.is_model_ready("nothing")
    told = client.get_server_metadata()
    assert {"binary_tensor_data", "model_repository", "statistics"} <= set(told["extensions"])
    assert client.get_model_metadata("digits") == {
        "name": "digits",
        "versions": ["1"],
        "platform": "onnx_onnxv1",
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 3, 416, 416]}],
        "outputs": [{"name": "grid", "datatype": "FP32", "shape": [1, 45, 26, 26]}],
    }
    config = client.get_model_config("digits")
    assert (config["max_batch_size"], config["input"][0]["data_type"]) == (0, "TYPE_FP32")


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_answers_equal_the_whole_model(
    client: Any, digits: Any, binary_in: bool, binary_out: bool
) -> None:
    image, whole = digits
    result = client.infer(
        "digits",
        [told("image", image, binary=binary_in)],
        outputs=[triton.InferRequestedOutput("grid", binary_data=binary_out)],
        request_id="mine",
    )
    assert result.get_response()["id"] == "mine"
    assert compare({"grid": result.as_numpy("grid")}, whole).max_rel_error <= 1e-5
    wrong = {"grid": result.as_numpy("grid") + 1e-2}
    assert compare(wrong, whole).max_rel_error > 1e-5


@pytest.mark.parametrize("sent", [None, "gzip", "deflate"])
@pytest.mark.parametrize("back", [None, "gzip", "deflate"])
def test_compressed_requests_and_answers_are_equal(
    client: Any, sent: str | None, back: str | None
) -> None:
    image = random((1, 3, 16, 16))
    result = client.infer(
        "stored",
        [told("image", image)],
        request_compression_algorithm=sent,
        response_compression_algorithm=back,
    )
    whole = WholeModel(tiny_model(), threads=1).run({"image": image})
    assert compare({"fc": result.as_numpy("fc")}, whole).max_rel_error <= 1e-5


def test_errors_say_what_is_wrong(client: Any) -> None:
    for model, tensor, text in (
        ("digits", told("image", random((1, 3, 8, 8))), "FP32 [1, 3, 8, 8]"),
        ("digits", told("picture", random(DIGITS_SHAPE)), "'picture' is unknown"),
        ("nothing", told("image", random(DIGITS_SHAPE)), "there is no model 'nothing'"),
    ):
        with pytest.raises(InferenceServerException) as caught:
            client.infer(model, [tensor])
        assert text in caught.value.message()
    with pytest.raises(InferenceServerException, match="no version '2'"):
        client.infer("stored", [told("image", random((1, 3, 16, 16)))], model_version="2")
    with pytest.raises(InferenceServerException, match="systemsharedmemory"):
        client.get_system_shared_memory_status()


def test_the_model_repository(client: Any) -> None:
    index = {row["name"]: row for row in client.get_model_repository_index()}
    assert (index["stored"]["version"], index["stored"]["state"]) == ("3", "READY")
    assert index["broken"]["state"] == "UNAVAILABLE"
    assert "broken/1/model.onnx" in index["broken"]["reason"]
    assert client.get_model_metadata("stored")["versions"] == ["3"]
    client.unload_model("stored")
    assert not client.is_model_ready("stored")
    with pytest.raises(InferenceServerException, match="unloaded"):
        client.infer("stored", [told("image", random((1, 3, 16, 16)))])
    assert client.is_server_ready()
    client.load_model("stored")
    assert client.is_model_ready("stored")
    client.infer("stored", [told("image", random((1, 3, 16, 16)))])
    with pytest.raises(InferenceServerException, match="only from the coordinator"):
        client.load_model("stored", config="{}")


def test_classification_is_answered_by_triton_clients(client: Any) -> None:
    image = random((1, 3, 16, 16))
    (scores,) = WholeModel(tiny_model(), threads=1).run({"image": image}).values()
    for binary in (True, False):
        wanted = triton.InferRequestedOutput("fc", binary_data=binary, class_count=2)
        result = client.infer("stored", [told("image", image)], outputs=[wanted])
        texts = [
            each.decode() if isinstance(each, bytes) else each for each in result.as_numpy("fc")
        ]
        best = np.argsort(-scores.ravel())[:2]
        assert [text.split(":")[1:] for text in texts] == [
            [str(index), ("ant", "bee", "cat")[index]] for index in best
        ]
        assert float(texts[0].split(":")[0]) == pytest.approx(scores.max(), abs=1e-5)


def test_statistics_count(client: Any) -> None:
    def count() -> tuple[int, int]:
        (row,) = client.get_inference_statistics("stored")["model_stats"]
        return row["inference_count"], row["inference_stats"]["compute_infer"]["count"]

    before = count()
    client.infer("stored", [told("image", random((1, 3, 16, 16)))])
    assert count() == (before[0] + 1, before[1] + 1)
    names = {row["name"] for row in client.get_inference_statistics()["model_stats"]}
    assert {"digits", "stored"} <= names


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # the client's own way
async def test_the_aio_client(service: Service, digits: Any) -> None:
    image, whole = digits
    client = triton_aio.InferenceServerClient(service.host_port)
    try:
        assert await client.is_server_ready()
        asked = [client.infer("digits", [told("image", image)]) for _ in range(4)]
        for result in await asyncio.gather(*asked):
            assert compare({"grid": result.as_numpy("grid")}, whole).max_rel_error <= 1e-5
        with pytest.raises(InferenceServerException, match="there is no model"):
            await client.get_model_metadata("nothing")
    finally:
        await client.close()
