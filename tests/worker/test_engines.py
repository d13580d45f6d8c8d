"""Engines: which there are, and a toy one that a real worker computes with."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from models.boxes import Box
from models.program import Program
from protos.channels import Caller
from protos.client import WorkerClient
from protos.errors import BadConfiguration
from tests.worker.support import (
    ROOT,
    conv_program,
    install,
    joined,
    message_of,
    picture,
    process,
    send,
    task_item,
    until_done,
    whole,
)
from worker.engines.registry import DEFAULT, engine_maker, engine_names


@pytest.fixture
def plugged(tmp_path, monkeypatch):
    """A package with one entry point, as `pip install` leaves it."""
    package = tmp_path / "packages"
    (package / "toy-0.dist-info").mkdir(parents=True)
    (package / "toy-0.dist-info" / "METADATA").write_text("Name: toy\nVersion: 0\n")
    (package / "toy-0.dist-info" / "entry_points.txt").write_text(
        "[imbrex.engines]\n"
        "reference = tests.worker.reference_engine:Reference\n"
        "broken = tests.worker.reference_engine:Nothing\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{package}:{ROOT}")
    monkeypatch.syspath_prepend(str(package))
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


async def test_what_an_engine_cannot_compute_is_refused_by_name(plugged):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [1, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    program = Program(model.SerializeToString(), ())
    with process(plugged, ENGINE="reference") as running:
        async with WorkerClient(running.address, Caller("host")) as client:
            reply = await client.prepare([message_of(program)])
            (prepared,) = reply.programs
            assert "the engine 'reference' does not support float16" in prepared.error


def test_the_engines_that_there_are(plugged):
    assert engine_names() == [DEFAULT, "broken", "reference"]
    with pytest.raises(BadConfiguration, match="no engine 'abacus'"):
        engine_maker("abacus")
    with pytest.raises(
        BadConfiguration, match=r"'broken' of tests\.worker\.reference_engine:Nothing"
    ):
        engine_maker("broken")
