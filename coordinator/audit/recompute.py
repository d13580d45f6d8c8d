"""The process that computes tasks again: jobs arrive on standard input, results leave on standard
output.

It is the first process that the kernel kills when memory is short, runs at the lowest priority, and
holds one program at a time. Its parent closes its input when there is no more work.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, TensorProto

from coordinator.audit.job import (
    AuditJob,
    OutputDifference,
    ReceivedOutput,
    differing,
    receive,
    relative,
    send,
)
from models.check.tolerance import decides_in, rounding_in, without_rounding
from models.onnx_file.mapped import ArrayLocation

# Bytes of weights above which a faster second copy for the kernels is not worth its memory.
_REARRANGED_BYTES = 64 << 20
# Where rounding decides some values, only most of them can prove a device wrong.
_MOST_DECIDED = 0.5


def recompute(job: AuditJob) -> OutputDifference:
    """The worst difference among all that arrived."""
    names = list(dict.fromkeys(received.tensor for received in job.received))
    computed = _run(job, names, exact=False)
    program = ModelProto.FromString(job.graph).graph
    steps = {name: rounding_in(program, name) for name in names}
    decided = {name for name in names if decides_in(program, name)}
    differences = [
        _difference(
            received,
            computed[received.tensor],
            job.tolerance,
            steps[received.tensor],
            decided=received.tensor in decided,
        )
        for received in job.received
    ]
    worst = max(differences, key=attrgetter("difference"))
    if not worst.is_wrong(job.tolerance):
        return worst
    again = _run(job, names, exact=True)
    noise = max(relative(computed[name], again[name]) for name in names)
    return OutputDifference(worst.tensor, worst.difference, noise)


def _difference(
    received: ReceivedOutput, computed: np.ndarray, tolerance: float, steps: float, *, decided: bool
) -> OutputDifference:
    expected = received.read(computed[received.box.slices(received.yields)], tolerance)
    actual = without_rounding(received.array, expected, steps)
    if decided and differing(actual, expected, tolerance) <= _MOST_DECIDED:
        return OutputDifference(received.tensor, 0.0)
    return OutputDifference(received.tensor, relative(actual, expected, computed))


def _run(job: AuditJob, names: Sequence[str], *, exact: bool) -> dict[str, np.ndarray]:
    model = ModelProto.FromString(job.graph)
    folder, size = Path(), 0
    for weight in job.weights:
        tensor = model.graph.initializer.add()
        tensor.name, tensor.data_type = weight.name, weight.data_type
        tensor.dims.extend(weight.dims)
        source = weight.source
        if isinstance(source, ArrayLocation) and (array := source.array()).flags.c_contiguous:
            folder, size = source.path.parent, size + array.nbytes
            # The tensor's bytes are named by their place in a file instead of being embedded.
            tensor.data_location = TensorProto.EXTERNAL
            entries = {
                "location": source.path.name,
                "offset": str(source.offset),
                "length": str(array.nbytes),
            }
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=value)
        else:
            tensor.raw_data = (
                source.array().tobytes() if isinstance(source, ArrayLocation) else source
            )
            size += len(tensor.raw_data)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(folder)
    )
    if exact:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    elif size > _REARRANGED_BYTES:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.add_session_config_entry("session.disable_prepacking", "1")
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return dict(zip(names, session.run(list(names), dict(job.inputs)), strict=True))


def main() -> None:
    """Processes jobs until there are no more."""
    os.nice(19)
    with suppress(OSError):  # not on Linux
        Path("/proc/self/oom_score_adj").write_text("1000")
    while True:
        try:
            job = receive(sys.stdin.buffer)
        except EOFError:
            return
        assert isinstance(job, AuditJob)
        try:
            answer: OutputDifference | str = recompute(job)
        except Exception as error:  # reported, so that the next job can be processed
            answer = f"{type(error).__name__}: {error}"
        send(sys.stdout.buffer, answer)


if __name__ == "__main__":
    main()
