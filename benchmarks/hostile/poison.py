"""Requests of every form to networks of every form, legal and not: no device may leave because of
them, and nobody else may notice.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import onnx
import zmq
from onnx import TensorProto, helper, numpy_helper

from benchmarks.hostile.attacks import MODELS, Happened, Target, attack
from models.catalogue.installed import Store
from models.onnx_file.importer import load_graph
from models.vision.model_families import About, described
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc

# Of one request: a network of a few operations on emulated devices.
PATIENCE_S = 20.0
Forms = dict[str, tuple[tuple[int, ...], int]]
# The inputs of the networks that are asked, by name.
FORMS: Forms = {
    "grey": ((1, 1, 28, 28), TensorProto.FLOAT),
    "nhwc": ((1, 32, 32, 3), TensorProto.FLOAT),
    "nhwc-half": ((1, 32, 32, 3), TensorProto.FLOAT16),
    "nhwc-bytes": ((1, 32, 32, 3), TensorProto.UINT8),
    "hwc": ((32, 32, 3), TensorProto.UINT8),
    "colours": ((1, 3, 32, 32), TensorProto.FLOAT),
    "colours-half": ((1, 3, 32, 32), TensorProto.FLOAT16),
    "vector": ((1, 8), TensorProto.FLOAT),
    "tokens": ((1, 16, 8), TensorProto.FLOAT),
    "volume": ((1, 2, 4, 8, 8), TensorProto.FLOAT),
    "integers": ((1, 8), TensorProto.INT64),
}
DATATYPES = {"float32": "FP32", "float16": "FP16", "uint8": "UINT8", "int64": "INT64"}
_NPZ, _OCTETS = "application/x-npz", "application/octet-stream"


def save_networks(folder: Path) -> None:
    """A repository of networks of all forms: a Relu, and a product with the last dimension."""
    store = Store(folder)
    for name, (shape, kind) in FORMS.items():
        weights = np.random.default_rng(1).standard_normal((shape[-1], 4), dtype=np.float32)
        nodes = [
            helper.make_node("Cast", ["x"], ["floats"], to=TensorProto.FLOAT),
            helper.make_node("Relu", ["floats"], ["some"]),
            helper.make_node("MatMul", ["some", "weights"], ["y"]),
        ]
        graph = helper.make_graph(
            nodes,
            name,
            [helper.make_tensor_value_info("x", kind, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, (*shape[:-1], 4))],
            [numpy_helper.from_array(weights, "weights")],
        )
        imports = [helper.make_opsetid("", 13)]
        model: onnx.ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=8)
        about = About(name, f"{name}.onnx")
        sidecar = described(load_graph(model, name), "tensor", None, (), "unit", about)
        store.add(name, model.SerializeToString(), sidecar)


def tensors(shape: tuple[int, ...], kind: int) -> Iterator[np.ndarray]:
    """Tensors for such an input: right ones of many values, then wrong ones."""
    rng, dtype = np.random.default_rng(2), helper.tensor_dtype_to_np_dtype(kind)
    pixels = rng.integers(0, 256, shape)
    normal = (rng.normal(0, 3, shape), pixels, pixels / 255)
    values = (0.0, np.nan, np.inf, -3e38, 3e38)
    with np.errstate(all="ignore"):
        same = [array.astype(dtype) for array in (*normal, *(np.full(shape, v) for v in values))]
    yield from same
    right = pixels.astype(dtype)
    yield from (right.astype(other) for other in DATATYPES if other != str(dtype))
    yield right.transpose()
    yield right[0]
    yield right[None]
    yield right.ravel()
    yield right[:0]
    yield right[..., :-1]
    yield np.concatenate([right, right])


def _npz(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, x=array)
    return file.getvalue()


def _described(array: np.ndarray, **more: object) -> dict[str, object]:
    datatype = DATATYPES[str(array.dtype)]
    return {"name": "x", "shape": list(array.shape), "datatype": datatype, **more}


def _over_http(target: Target) -> Iterator[tuple[str, int]]:
    with httpx.Client(base_url=target.url, timeout=PATIENCE_S) as client:

        def sent(what: str, path: str, body: bytes, **headers: str) -> tuple[str, int]:
            named = {key.replace("_", "-"): value for key, value in headers.items()}
            return what, client.post(path, content=body, headers=named).status_code

        for name, (shape, kind) in FORMS.items():
            native, oip = f"/v1/models/{name}/infer", f"/v2/models/{name}/infer"
            for array in tensors(shape, kind):
                body = _npz(array)
                yield sent(f"{name} as npz", native, body, Content_Type=_NPZ)
                raw = np.ascontiguousarray(array).tobytes()
                for size in {len(raw), max(0, len(raw) - 3)}:
                    about = _described(array, parameters={"binary_data_size": size})
                    head = json.dumps({"inputs": [about]}).encode()
                    length = {"Inference_Header_Content_Length": str(len(head))}
                    yield sent(f"{name} in binary", oip, head + raw, Content_Type=_OCTETS, **length)
                numbers = np.nan_to_num(array.astype(np.float64)).ravel().tolist()
                text = json.dumps({"inputs": [_described(array, data=numbers)]}).encode()
                yield sent(f"{name} as JSON", oip, text, Content_Type="application/json")
            for damaged in (b"", body[:-20], body[20:], bytes(100)):
                yield sent(f"{name}, damaged", native, damaged, Content_Type=_NPZ)
                yield sent(f"{name}, damaged", native, damaged, Content_Type="image/png")


def _over_grpc(target: Target) -> Iterator[tuple[str, int]]:
    with grpc.insecure_channel(target.grpc) as channel:
        stub: Any = inference_pb2_grpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        for name, (shape, kind) in FORMS.items():
            for array in tensors(shape, kind):
                raw = np.ascontiguousarray(array).tobytes()
                for cut in (raw, raw[:-3]):
                    asked = pb.ModelInferRequest(model_name=name, raw_input_contents=[cut])
                    tensor = asked.inputs.add(name="x", datatype=DATATYPES[str(array.dtype)])
                    tensor.shape.extend(array.shape)
                    try:
                        stub.ModelInfer(asked, timeout=PATIENCE_S)
                        status = 200
                    except grpc.RpcError as error:
                        is_refusal = error.code() is grpc.StatusCode.INVALID_ARGUMENT
                        status = 400 if is_refusal else 500
                    yield f"{name} over gRPC", status


def _over_zmq(target: Target) -> Iterator[tuple[str, int]]:
    """As a Frigate would whose configuration fits the model, and others would not."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.REQ)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, round(PATIENCE_S * 1000))
    try:
        socket.connect(target.settings["frigate_zmq"][0])
        for name, (shape, kind) in FORMS.items():
            model = Store(target.folder / MODELS).installed()[name].latest.read_bytes()
            file = f"{name}.onnx"
            socket.send_multipart(
                [json.dumps({"model_data": True, "model_name": file}).encode(), model]
            )
            socket.recv_multipart()
            for array in tensors(shape, kind):
                head = {"shape": list(array.shape), "dtype": str(array.dtype), "model_type": "ssd"}
                raw = np.ascontiguousarray(array).tobytes()
                for cut in (raw, raw[:-3]):
                    socket.send_multipart([json.dumps(head).encode(), cut])
                    socket.recv_multipart()
                    yield f"{name} over ZeroMQ", 200
    finally:
        context.destroy()


def _departures(target: Target) -> float:
    """How often devices have left the coordinator."""
    text = httpx.get(f"{target.url}/metrics", timeout=PATIENCE_S).text
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return sum(float(value) for key, _, value in lines if "departures_total" in key)


@attack(
    "poison",
    "each is answered or refused with 4xx, no device leaves, and nobody waits a second more",
    place="poison",
    patient_s=1.5,
)
def tensors_of_every_form(target: Target) -> Happened:
    """Right and wrong tensors for pictures, tokens, volumes and numbers: other types, layouts,
    ranks, values and bytes, as .npz, JSON, binary tensors, over gRPC and as Frigate.
    """
    before = _departures(target)
    statuses: Counter[int] = Counter()
    bad: list[str] = []
    for ways in (_over_http, _over_grpc, _over_zmq):
        for what, status in ways(target):
            statuses[status] += 1
            if not 200 <= status < 500:
                bad.append(f"{what}: {status}")
    left = _departures(target) - before
    told = ", ".join(f"{count} of {status}" for status, count in sorted(statuses.items()))
    answered = statuses[200] > len(FORMS)
    return Happened(
        answered and not bad and not left,
        f"{told}; {left:.0f} departures {bad[:3] or ''}",
        {"requests": statuses.total(), "departures": left},
    )
