"""Run in a process of its own: does memory grow as programs take turns at more rows and fewer?"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import psutil
from onnx import TensorProto, helper

from models.cut.program import Program
from worker.engines.base import Place
from worker.engines.onnxruntime import OnnxRuntime
from worker.programs.store import BlobStore

CHANNELS, COLUMNS = 64, 512
ROWS = (96, 64, 80, 48, 112, 72)
MB = 1 << 20


def program(length: int) -> Program:
    """`x` (1, 64, h, 512) through so many maps of the same size."""
    names = ["x", *(f"t{number}" for number in range(length - 1)), "y"]
    nodes = [
        helper.make_node("Sin" if number % 2 else "Erf", [names[number]], [names[number + 1]])
        for number in range(length)
    ]
    size = [1, CHANNELS, "h", COLUMNS]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, size)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Program(model.SerializeToString(), ())


def main() -> int:
    """1 if the runs after the first ones have taken much more than the largest needs."""
    with tempfile.TemporaryDirectory() as name:
        store = BlobStore(Path(name) / "store", 1 << 30)
        engine = OnnxRuntime(Place(Path(name) / "engine", store, 1))
        sessions = []
        for number, rows in enumerate(ROWS):
            each = program(3 + number)
            engine.prepare(each)
            session = engine.load(each.sha256)
            assert session is not None
            sessions.append((session, rows))
        process = psutil.Process()
        before = process.memory_info().rss
        for _ in range(3):
            for session, rows in sessions:
                x = np.ones((1, CHANNELS, rows, COLUMNS), np.float32)
                session.bound({"x": x}, {"y": x.shape}).compute()
        grown = process.memory_info().rss - before
    largest = max(ROWS) * CHANNELS * COLUMNS * 4
    print(f"{grown / MB:.0f} MB more; the largest map has {largest / MB:.0f} MB")
    return int(grown > 8 * largest)


if __name__ == "__main__":
    sys.exit(main())
