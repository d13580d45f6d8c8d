"""The protocol over gRPC, against real processes: with our stubs, and with Triton's own client."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from coordinator.serving.common.access import Access
from coordinator.serving.common.keys import Keys, Role
from coordinator.serving.oip import reading
from coordinator.serving.oip.inference_service import InferenceService as Serving
from coordinator.serving.oip.rpc import RpcServer
from coordinator.settings import CoordinatorSettings
from coordinator.trust.cluster_state import ClusterState
from models.run.reference import WholeModel, compare
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from tests.serving.in_place import InPlace, tiny_model
from tests.serving.processes import Service

TRITON = Path(__file__).parents[2] / ".venv-triton" / "bin" / "python"
SHAPE = (1, 3, 16, 16)


def values() -> np.ndarray:
    return np.random.default_rng(6).random(SHAPE, np.float32)


def request(**fields) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="stored", id="mine")
    message.inputs.add(name="image", datatype="FP32", shape=SHAPE)
    message.raw_input_contents.append(values().tobytes())
    for name, value in fields.items():
        setattr(message, name, value)
    return message


@pytest.fixture
async def channel(service: Service) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(service.grpc) as made:
        yield made


@pytest.fixture
def stub(channel: grpc.aio.Channel):
    return inference_pb2_grpc.GRPCInferenceServiceStub(channel)


def answered(response: pb.ModelInferResponse) -> dict[str, np.ndarray]:
    return {
        each.name: np.frombuffer(raw, np.float32).reshape(each.shape)
        for each, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


async def test_raw_and_typed_contents_give_the_same_answer(stub) -> None:
    whole = WholeModel(tiny_model(), threads=1).run({"image": values()})
    raw = await stub.ModelInfer(request())
    assert (raw.id, raw.model_version) == ("mine", "3")
    assert compare(answered(raw), whole).max_rel_error <= 1e-5
    message = request()
    del message.raw_input_contents[:]
    message.inputs[0].contents.fp32_contents.extend(values().ravel().tolist())
    typed = await stub.ModelInfer(message)
    assert answered(typed)["fc"].tobytes() == answered(raw)["fc"].tobytes()


async def test_classification_is_answered_as_bytes(stub) -> None:
    message = request()
    wanted = message.outputs.add(name="fc")
    wanted.parameters["classification"].int64_param = 1
    response = await stub.ModelInfer(message)
    assert (response.outputs[0].datatype, list(response.outputs[0].shape)) == ("BYTES", [1])
    length = int.from_bytes(response.raw_output_contents[0][:4], "little")
    assert length == len(response.raw_output_contents[0]) - 4


async def test_a_stream_goes_on_after_an_error(stub) -> None:
    async def asked():
        for name in ("stored", "nothing", "stored"):
            yield request(model_name=name)

    told = [each async for each in stub.ModelStreamInfer(asked())]
    assert [bool(each.error_message) for each in told] == [False, True, False]
    assert "nothing" in told[1].error_message
    assert [each.infer_response.id for each in told] == ["mine"] * 3


def _short(message: pb.ModelInferRequest) -> None:
    message.raw_input_contents[0] = b"short"


def _both(message: pb.ModelInferRequest) -> None:
    message.inputs[0].contents.fp32_contents.append(1.0)


def _two(message: pb.ModelInferRequest) -> None:
    message.raw_input_contents.append(b"")


def _type(message: pb.ModelInferRequest) -> None:
    message.inputs[0].datatype = "FP16"


def _shared(message: pb.ModelInferRequest) -> None:
    message.inputs[0].parameters["shared_memory_region"].string_param = "x"


def _output(message: pb.ModelInferRequest) -> None:
    message.outputs.add(name="none")


def _no_model(message: pb.ModelInferRequest) -> None:
    message.model_name = "none"


@pytest.mark.parametrize(
    ("spoil", "code", "text"),
    [
        (_short, grpc.StatusCode.INVALID_ARGUMENT, "has 5 bytes"),
        (_both, grpc.StatusCode.INVALID_ARGUMENT, "both contents and raw"),
        (_two, grpc.StatusCode.INVALID_ARGUMENT, "2 raw_input_contents"),
        (_type, grpc.StatusCode.INVALID_ARGUMENT, "FP16"),
        (_shared, grpc.StatusCode.UNIMPLEMENTED, "does not share memory"),
        (_output, grpc.StatusCode.INVALID_ARGUMENT, "'none' is unknown"),
        (_no_model, grpc.StatusCode.NOT_FOUND, "there is no model 'none'"),
    ],
)
async def test_bad_request_is_refused_with_its_code(stub, spoil, code, text) -> None:
    message = request()
    spoil(message)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ModelInfer(message)
    assert (caught.value.code(), text in caught.value.details()) == (code, True)


async def test_metadata_statistics_and_repository(stub) -> None:
    assert (await stub.ServerLive(pb.ServerLiveRequest())).live
    assert (await stub.ServerReady(pb.ServerReadyRequest())).ready
    assert (await stub.ModelReady(pb.ModelReadyRequest(name="stored"))).ready
    assert "statistics" in (await stub.ServerMetadata(pb.ServerMetadataRequest())).extensions
    told = await stub.ModelMetadata(pb.ModelMetadataRequest(name="stored"))
    assert (list(told.versions), list(told.inputs[0].shape)) == (["3"], list(SHAPE))
    config = (await stub.ModelConfig(pb.ModelConfigRequest(name="stored"))).config
    assert (config.backend, config.input[0].data_type) == ("onnxruntime", pb.TYPE_FP32)
    await stub.ModelInfer(request())
    asked = pb.ModelStatisticsRequest(name="stored")
    (row,) = (await stub.ModelStatistics(asked)).model_stats
    assert row.inference_stats.success.count == row.inference_count > 0
    index = (await stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True))).models
    assert {each.name: each.state for each in index}["digits"] == "READY"


async def test_health_and_reflection(channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    service = health_pb2.HealthCheckRequest(service="inference.GRPCInferenceService")
    async with asyncio.timeout(60):
        async for told in stub.Watch(service):
            if told.status == health_pb2.HealthCheckResponse.SERVING:
                break
    assert told.status == health_pb2.HealthCheckResponse.SERVING

    async def asked():
        yield reflection_pb2.ServerReflectionRequest(list_services="")

    reflect = reflection_pb2_grpc.ServerReflectionStub(channel)
    async for each in reflect.ServerReflectionInfo(asked()):
        names = {service.name for service in each.list_services_response.service}
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= names


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """A server of this process where a key is in use: its address, and the key."""
    keys = Keys(ClusterState(tmp_path))
    server = RpcServer(Serving(InPlace()), Access(keys, 0.0), CoordinatorSettings())
    key = keys.add("me", Role.INFER)
    yield await server.start("127.0.0.1", 0), key
    await server.stop()


async def test_no_message_is_read_without_a_key(
    keyed: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []

    async def noted(context: grpc.aio.ServicerContext) -> bytes:
        read.append(1)
        return await context.read()

    monkeypatch.setattr(reading, "_next", noted)
    address, key = keyed
    names = [each.name for each in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods]
    async with grpc.aio.insecure_channel(address) as channel:
        for name in names:
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
            if name in ("ServerLive", "ServerReady"):
                await call(bytes(100_000))
                continue
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(bytes(100_000))
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED, name
        assert len(names) > 8
        assert read == []
        call = channel.unary_unary("/inference.GRPCInferenceService/RepositoryIndex")
        await call(b"", metadata=(("x-api-key", key),))
    assert read == [1]


async def test_streams_have_a_cap(keyed: tuple[str, str]) -> None:
    address, key = keyed
    metadata = (("x-api-key", key),)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        kept = [stub.ModelStreamInfer(metadata=metadata) for _ in range(reading.MOST_STREAMS // 2)]
        for each in kept:
            await each.write(pb.ModelInferRequest(model_name="none"))
            assert (await each.read()).error_message
        more = stub.ModelStreamInfer(metadata=metadata)
        await more.write(pb.ModelInferRequest(model_name="none"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await more.read()
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        for each in kept:
            each.cancel()


CLIENT = """
import asyncio, sys
import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

image = np.random.default_rng(6).random((1, 3, 16, 16), np.float32)
tensor = triton.InferInput("image", [1, 3, 16, 16], "FP32")
tensor.set_data_from_numpy(image)
client = triton.InferenceServerClient(sys.argv[1])
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("stored")
assert client.get_server_metadata().name == "imbrex"
assert list(client.get_model_metadata("stored").versions) == ["3"]
assert client.get_model_config("stored").config.input[0].name == "image"
sync = client.infer("stored", [tensor], request_id="mine")
assert sync.get_response().id == "mine"
best = client.infer("stored", [tensor], outputs=[triton.InferRequestedOutput("fc", class_count=1)])
assert best.as_numpy("fc")[0].decode().split(":")[2] in ("ant", "bee", "cat")
packed = client.infer("stored", [tensor], compression_algorithm="gzip")
assert (packed.as_numpy("fc") == sync.as_numpy("fc")).all()
assert client.get_inference_statistics("stored").model_stats[0].inference_count >= 3
assert "READY" in {row.state for row in client.get_model_repository_index().models}
try:
    client.infer("nothing", [tensor])
except InferenceServerException as error:
    assert error.status() == "StatusCode.NOT_FOUND", error
else:
    raise SystemExit("no error")
heard = []
client.start_stream(lambda result, error: heard.append((result, error)))
client.async_stream_infer("stored", [tensor])
client.stop_stream()
assert heard[0][1] is None and (heard[0][0].as_numpy("fc") == sync.as_numpy("fc")).all()

async def more():
    async with triton_aio.InferenceServerClient(sys.argv[1]) as client:
        result = await client.infer("stored", [tensor])
        assert (result.as_numpy("fc") == sync.as_numpy("fc")).all()

asyncio.run(more())
print(" ".join(str(value) for value in sync.as_numpy("fc").ravel()))
"""


@pytest.mark.skipif(
    not TRITON.exists(), reason="tritonclient[grpc] needs protobuf < 7: `make .venv-triton/ready`"
)
def test_the_published_grpc_client(service: Service) -> None:
    ran = subprocess.run(
        [TRITON, "-c", CLIENT, service.grpc],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said = np.array([float(word) for word in ran.stdout.split()], np.float32).reshape(1, 3)
    whole = WholeModel(tiny_model(), threads=1).run({"image": values()})
    assert compare({"fc": said}, whole).max_rel_error <= 1e-5


async def test_a_model_that_does_not_exist_is_not_ready(stub) -> None:
    """As with Triton, of which clients ask until it is."""
    assert not (await stub.ModelReady(pb.ModelReadyRequest(name="nothing"))).ready
    assert (await stub.ModelReady(pb.ModelReadyRequest(name="stored"))).ready
