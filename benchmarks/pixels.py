"""What sending pictures as uint8 saves: the same requests with pixels and with float32 tensors.

One cluster of local workers, one plan, requests in turns: a picture is decoded, made into the
model's input either way, sent, computed and merged. Both answers are compared to the bit.

    python -m benchmarks.pixels [--json] [--workers 4] [--rounds 15]
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.local import local_cluster
from benchmarks.report import command_line, emit
from coordinator.answers import Answer
from coordinator.service import Coordinator
from models.digits.examples import examples
from models.run.reference import EQUAL, compare
from models.vision.image_input import ImageInput
from models.vision.preprocess import decode_image, image_to_pixels

MODEL = "digits"
WARM_UP = 3
Prepare = Callable[[bytes], np.ndarray]


async def measure(workers: int, rounds: int) -> dict[str, Any]:
    """Medians of both ways, and pixels over tensors."""
    body = examples()[0].path.read_bytes()
    async with local_cluster(workers) as cluster:
        coordinator = cluster.coordinator
        form = _form((await coordinator.library.get(MODEL)).sidecar)
        ways: dict[str, Prepare] = {
            "pixels": lambda data: image_to_pixels(decode_image(data), form)[0],
            "tensors": lambda data: form.pixels.values(
                image_to_pixels(decode_image(data), form)[0]
            ),
        }
        seen: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        versions = set()
        equal = True
        for number in range(-WARM_UP, rounds):
            answers = {}
            for name, prepare in ways.items():
                answers[name], sample = await _one(coordinator, prepare, form.name, body)
                versions.add(answers[name].plan_version)
                if number >= 0:
                    seen[name].append(sample)
            same = compare(answers["pixels"].outputs, answers["tensors"].outputs)
            equal = equal and same == EQUAL
    medians = {
        name: {key: round(statistics.median(s[key] for s in samples), 3) for key in samples[0]}
        for name, samples in seen.items()
    }
    keys = medians["pixels"].keys()
    return {
        "model": MODEL,
        "workers": workers,
        "rounds": rounds,
        "plans": len(versions),
        "bitwise_equal": equal,
        **medians,
        "ratios": {key: _ratio(medians["pixels"][key], medians["tensors"][key]) for key in keys},
    }


async def _one(
    coordinator: Coordinator, prepare: Prepare, name: str, body: bytes
) -> tuple[Answer, dict[str, float]]:
    started, cpu_s = time.perf_counter(), _cpu_s()
    tensor = await asyncio.to_thread(prepare, body)
    decode_s = time.perf_counter() - started
    answer = await coordinator.infer(MODEL, {name: tensor})
    total_s = time.perf_counter() - started
    return answer, {
        "decode_ms": decode_s * 1e3,
        "scatter_ms": answer.timing.scatter_s * 1e3,
        "inference_ms": answer.timing.total_s * 1e3,
        "total_ms": total_s * 1e3,
        "host_cpu_ms": (_cpu_s() - cpu_s) * 1e3,
        "scatter_bytes": answer.traffic.scatter,
    }


def _form(sidecar: Any) -> ImageInput:
    assert sidecar is not None, "the default model takes pictures"
    form: ImageInput = sidecar.input
    return form


def _ratio(new: float, old: float) -> float | None:
    return round(new / old, 3) if old else None


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Prints the result; fails unless both answers are equal to the bit."""
    parser = command_line(__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    result = asyncio.run(measure(arguments.workers, arguments.rounds))
    lines = [f"{MODEL} on {arguments.workers} workers, medians of {arguments.rounds} in turns:"]
    lines += [
        f"  {key:14} {result['pixels'][key]:>10} as uint8, {result['tensors'][key]:>10} as float32"
        f" (x{ratio})"
        for key, ratio in result["ratios"].items()
    ]
    lines.append("answers equal to the bit" if result["bitwise_equal"] else "answers DIFFER")
    emit(result, arguments, "\n".join(lines))
    return 0 if result["bitwise_equal"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
