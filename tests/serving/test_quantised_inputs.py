"""What a network quantises first travels to real workers quantised; clients send its own tensor."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from coordinator.devices import children
from coordinator.serving.common.tensors import write_tensors
from models.run.reference import EQUAL, WholeModel, compare
from protos.errors import BadRequest
from tests.models.int8 import Int8
from tests.serving.real import running

SHAPE = (1, 3, 64, 64)


def saved(folder: Path) -> Path:
    net = Int8(np.random.default_rng(4))
    tensor = net.conv(net.quantise("x", SHAPE), 8, 3, 1, True)
    for _ in range(3):
        tensor = net.conv(tensor, 8, 3, 1, True)
    path = folder / "tiny.onnx"
    onnx.save(net.model(SHAPE, [tensor]), path)
    return path


async def test_a_quarter_is_sent_and_every_bit_comes_back(
    tmp_path: Path, workers: list[children.Child]
) -> None:
    path = saved(tmp_path)
    values = np.random.default_rng(5).standard_normal(SHAPE, np.float32)
    expected = WholeModel(onnx.load(path), threads=1).run({"x": values})
    async with running(tmp_path, workers, path, strategy="efl") as real:
        answer = await real.coordinator.infer(str(path), {"x": values})
        assert compare(answer.outputs, expected) == EQUAL
        plan, network = await real.coordinator.plans.current(str(path))
        (block,) = plan.blocks
        assert len(block.tiles) == 2
        assert answer.traffic == plan.traffic
        # One byte of each element, and some rows twice.
        assert values.size < answer.traffic.scatter < 1.5 * values.size
        numbers = network.graph.tensors["x"].on_wire.dtype.type(3)
        with pytest.raises(BadRequest, match="uint8"):
            await real.coordinator.infer(str(path), {"x": np.full(SHAPE, numbers)})
        body, headers = write_tensors({"x": values}), {"Content-Type": "application/x-npz"}
        response = await real.http.post("/v1/models/tiny/infer", content=body, headers=headers)
        assert response.status_code == 200
        body = write_tensors({"x": values.astype(np.uint8)})
        response = await real.http.post("/v1/models/tiny/infer", content=body, headers=headers)
        assert response.status_code == 400
        assert "uint8" in response.json()["error"]["cause"]
