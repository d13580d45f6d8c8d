"""What people would otherwise run: one onnxruntime process behind FastAPI, at a worker's pace.

python -m benchmarks.rival MODEL.onnx --pace 0.3 --port 8000
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import onnxruntime
import uvicorn
from fastapi import FastAPI, Request

from models.vision.predictions import predictions
from models.vision.preprocess import decode_image, image_to_tensor
from models.vision.sidecar import load, sidecar_path
from worker.compute import Compute, Throttle
from worker.engines.base import Ready


def rival(model: Path, pace: float) -> FastAPI:
    """`POST /infer` with a picture as its body; decoding as the coordinator's, in threads."""
    sidecar = load(sidecar_path(model))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    compute = Compute(Throttle(pace))
    app = FastAPI()

    @app.post("/infer")
    async def infer(request: Request) -> dict[str, Any]:
        body = await request.body()
        picture = await asyncio.to_thread(decode_image, body)
        tensor, placement = await asyncio.to_thread(image_to_tensor, picture, sidecar.input)

        def begin() -> Ready[list[Any]]:
            return Ready(lambda: session.run(names, {sidecar.input.name: tensor}))

        ran = await compute.run(begin)
        found = predictions(sidecar, dict(zip(names, ran.value, strict=True)), placement)
        return {"predictions": [each.as_json() for each in found]}

    return app


def main() -> None:
    """Serves until it is ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path)
    parser.add_argument("--pace", type=float, default=1.0)
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    app = rival(arguments.model, arguments.pace)
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
