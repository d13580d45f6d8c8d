"""Engines: which there are, and a toy one that a real worker computes with."""

import asyncio
import re
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from onnx import TensorProto, helper

from models.cut.program import BlobSource, Program
from models.tensors.boxes import Box
from protos.errors import BadConfiguration
from protos.rpc.channels import Caller
from protos.rpc.worker_client import WorkerClient
from tests.worker.plugged import plug
from tests.worker.support import (
    conv_program,
    install,
    joined,
    picture,
    process,
    send,
    task_item,
    until_done,
    whole,
)
from worker.engines import AUTO
from worker.engines.base import Place
from worker.engines.onnxruntime import OnnxRuntime
from worker.engines.registry import (
    DEFAULT,
    candidates,
    engine_names,
    factory_of,
)
from worker.programs.store import BlobStore

TOY = "reference_engine"


@pytest.fixture
def plugged(tmp_path, monkeypatch):
    plug(tmp_path, monkeypatch, reference=f"{TOY}:Reference", broken=f"{TOY}:Nothing")
    return tmp_path / "state"


async def test_an_engine_is_one_file_and_one_row(plugged):
    program, blobs = conv_program()
    box = Box.whole((1, 16, 12, 10))
    with process(plugged, ENGINE="reference") as running:
        async with WorkerClient(running.address, Caller("host")) as client:
            facts = (await client.hello("test")).facts
            assert (facts.engine, facts.processor, facts.runtime) == ("reference", "cpu", "0")
            assert facts.gflops == 0.01
            await install(client, program, blobs)
            stream = client.exchange()
            output = {"tensor": "y", "box": box, "yields": box}
            await stream.write([task_item(program, {"x": box}, [output])])
            await send(stream, "x", box, picture())
            pieces, (done,) = await until_done(stream)
            assert done.stop_s > done.start_s
            assert np.abs(joined(pieces, box) - whole(picture())).max() < 1e-5


async def test_program_beyond_an_engine_runs_by_onnxruntime_and_is_named(plugged):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [1, 4, 2, 2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    program = Program(model.SerializeToString(), ())
    box = Box.whole((1, 4, 2, 2))
    x = np.linspace(-1, 1, 16).astype(np.float16).reshape(box.shape)
    with process(plugged, ENGINE="reference") as running:
        async with WorkerClient(running.address, Caller("host")) as client:
            await install(client, program, BlobSource())
            stream = client.exchange()
            output = {"tensor": "y", "box": box, "yields": box}
            await stream.write([task_item(program, {"x": box}, [output], data_type=10)])
            await send(stream, "x", box, x)
            pieces, _ = await until_done(stream)
            assert (joined(pieces, box) == np.maximum(x, 0)).all()

            async def kept():
                return (await client.hello("test")).facts.kept

            while not await kept():
                await asyncio.sleep(0.05)
            (told,) = await kept()
            assert told.is_lacking
            assert "does not support float16" in told.why


def test_the_engines_that_there_are(plugged):
    assert engine_names() == [AUTO, DEFAULT, "ncnn", "openvino", "broken", "reference"]
    with pytest.raises(BadConfiguration, match="no engine 'abacus'"):
        factory_of("abacus")
    with pytest.raises(
        BadConfiguration, match=r"'broken' of tests\.worker\.reference_engine:Nothing"
    ):
        factory_of("broken")
    with pytest.raises(BadConfiguration, match="no 'NoSuchExecutionProvider'"):
        factory_of("onnxruntime:NoSuchExecutionProvider")(None)


@pytest.mark.parametrize("name", ["ncnn", "openvino"])
def test_an_engine_whose_package_is_missing_names_the_extra(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"worker.engines.{name}", raising=False)
    with pytest.raises(BadConfiguration, match="not installed") as raised:
        factory_of(name)
    assert re.search(rf"-m pip install '{name}>=[\d.]+', or", raised.value.cure)


def test_a_version_of_onnxruntime_that_computes_wrongly_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("onnxruntime.__version__", "1.27.0")
    with pytest.raises(BadConfiguration, match=r"onnxruntime 1\.27\.0 computes convolutions wrong"):
        OnnxRuntime(Place(tmp_path, BlobStore(tmp_path, 1), 1))


@pytest.mark.skipif(find_spec("openvino") is None, reason="needs the extra openvino")
def test_intels_devices_are_tried_where_the_kernel_shows_them(tmp_path):
    assert not [name for name in candidates(tmp_path) if name.startswith("openvino:")]
    for where, vendor in (("class/drm/renderD128", "0x8086\n"), ("class/accel/accel0", "0x1002\n")):
        (tmp_path / where / "device").mkdir(parents=True)
        (tmp_path / where / "device" / "vendor").write_text(vendor)
    assert [name for name in candidates(tmp_path) if name.startswith("openvino")] == [
        "openvino",
        "openvino:GPU",
    ]
