"""Frigate's side of its `zmq` detector, step by step: REQ, timeouts, a new socket after each."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import zmq

from models.onnx_file.builder import NetworkBuilder, square

ZEROS = np.zeros((20, 6), np.float32)
MODEL_TIMEOUT_MS = 30_000


class Detector:
    """One detector of a Frigate that has this model file."""

    def __init__(self, endpoint: str, model: Path, timeout_ms: int = 30_000) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._endpoint = endpoint
        self._model = model
        self._timeout_ms = timeout_ms
        self.timeouts = 0
        self._connect()

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def initialise(self) -> bool:
        """Asks for the model, and sends it if it is not there; whether it is loaded."""
        asked = self._json({"model_request": True, "model_name": self._model.name})
        if asked["model_available"]:
            return bool(asked["model_loaded"])
        header = {"model_data": True, "model_name": self._model.name}
        sent = self._json(header, self._model.read_bytes())
        return bool(sent["model_saved"] and sent["model_loaded"])

    def detect(self, tensor: np.ndarray, model_type: str = "yologeneric") -> np.ndarray:
        """Rows, or zeros after a timeout."""
        header = {
            "shape": list(tensor.shape),
            "dtype": tensor.dtype.name,
            "model_type": model_type,
        }
        try:
            self._socket.send_multipart([json.dumps(header).encode(), tensor.tobytes(order="C")])
            return self._decoded(self._socket.recv_multipart())
        except zmq.Again:
            self.timeouts += 1
            self.restart()
            return ZEROS

    def restart(self) -> None:
        """A new socket, and the model again, until it is loaded."""
        while True:
            self._socket.close()
            self._connect()
            with suppress(zmq.Again):
                if self.initialise():
                    return

    def raw(self, *frames: bytes) -> list[bytes]:
        """The answer to any frames."""
        self._socket.send_multipart(frames)
        return self._socket.recv_multipart()

    def _connect(self) -> None:
        self._socket = self._context.socket(zmq.REQ)
        self._socket.setsockopt(zmq.RCVTIMEO, self._timeout_ms)
        self._socket.setsockopt(zmq.SNDTIMEO, self._timeout_ms)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(self._endpoint)

    def _json(self, header: dict[str, Any], *data: bytes) -> dict[str, Any]:
        self._socket.setsockopt(zmq.RCVTIMEO, MODEL_TIMEOUT_MS)
        (answer,) = self.raw(json.dumps(header).encode(), *data)
        self._socket.setsockopt(zmq.RCVTIMEO, self._timeout_ms)
        found: dict[str, Any] = json.loads(answer)
        return found

    def _decoded(self, frames: list[bytes]) -> np.ndarray:
        if len(frames) == 1:
            return np.frombuffer(frames[0], np.float32).reshape(20, 6)
        header = json.loads(frames[0])
        return np.frombuffer(frames[1], np.dtype(header["dtype"])).reshape(header["shape"])


def save_detector(folder: Path, side: int = 32, classes: int = 3) -> Path:
    """A network whose output is that of a YOLOv8: (1, 4 + classes, boxes) of two maps."""
    net = NetworkBuilder("crops", seed=5)
    x = net.input("images", (1, 3, side, side))
    parts, boxes = [], 0
    for number in (1, 2):
        x = x.conv(f"conv{number}", 8, square(3, 2)).relu()
        head = x.conv(f"head{number}", 4 + classes, square(1))
        cells = (side >> number) ** 2
        shape = net.integers(f"flat{number}.shape", (1, 4 + classes, cells))
        flat = net.node("Reshape", f"flat{number}", [head.name, shape], (1, 4 + classes, cells))
        parts.append(flat.name)
        boxes += cells
    joined = net.node("Concat", "output0", parts, (1, 4 + classes, boxes), axis=2)
    path = folder / "crops.onnx"
    onnx.save(net.model(joined), path)
    return path
