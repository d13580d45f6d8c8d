"""onnxruntime as this worker uses it: session options, one shared allocator, shared weights.

Measured in docs/adr/0002-sessions.md.
"""

import os
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnxruntime as ort

from models.tensors.arrays import Arrays, aligned_empty
from protos.errors import ImbrexError, Unavailable
from protos.failures import BadInput, OutOfMemory, RunError
from worker.engines.base import Ready, Runnable, Signature, WantedShapes

_LEVELS = ort.GraphOptimizationLevel
CPU = "CPUExecutionProvider"

# The pass that lays out maps and weights of convolutions in blocks of channels. The wheels for
# x86-64 have it; those for Arm do not.
BLOCKED_LAYOUT = "NchwcTransformer"

# OrtArenaCfg: grow by the requested size, not by powers of two: a Pi has 1 GB.
_SAME_AS_REQUESTED = 1

# onnxruntime's messages for a lack of memory: most of its errors are plain RuntimeErrors.
_NO_MEMORY = ("Failed to allocate memory", "bad_alloc", "Available memory of")

# Of the pool's threads, counted from one.
AFFINITIES = "session.intra_op_thread_affinities"

_NUMPY_TYPES: dict[str, np.dtype] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(uint8)": np.dtype(np.uint8),
    "tensor(int8)": np.dtype(np.int8),
    "tensor(uint16)": np.dtype(np.uint16),
    "tensor(int16)": np.dtype(np.int16),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(bool)": np.dtype(np.bool_),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(double)": np.dtype(np.float64),
    "tensor(uint32)": np.dtype(np.uint32),
    "tensor(uint64)": np.dtype(np.uint64),
}


def cores_of_pool(threads: int) -> list[int]:
    """The core of each thread of a session's pool, which has one less than `threads`: a run's own
    thread computes, too. Empty if cores are left over, where a pinned thread might meet another
    program beside an idle core.
    """
    usable = sorted(os.sched_getaffinity(0))
    return usable[1:] if threads == len(usable) else []


def options(
    folder: Path, threads: int, *, optimise: bool, shared: bool = True, packed: bool = False
) -> ort.SessionOptions:
    """Options of every session. `folder` holds the files that external initialisers name; a session
    that is not `shared` is plain onnxruntime, with a private arena that is freed with it. One that
    is `packed` packs weights that are not packed in these files.
    """
    chosen = ort.SessionOptions()
    chosen.intra_op_num_threads = threads
    chosen.inter_op_num_threads = 1
    chosen.graph_optimization_level = (
        _LEVELS.ORT_ENABLE_ALL if optimise else _LEVELS.ORT_DISABLE_ALL
    )
    # Fatal only: warnings are about graphs that others have exported, and errors are raised.
    chosen.log_severity_level = 4
    entries = {
        "session.intra_op.allow_spinning": "0",
        "session.model_external_initializers_file_folder_path": str(folder),
    }
    # An idle thread that onnxruntime wakes is put beside the one that wakes it: after a pause of a
    # third of a second, two threads shared one of two cores for most of a run.
    if cores := cores_of_pool(threads):
        entries[AFFINITIES] = ";".join(str(core + 1) for core in cores)
    if shared:
        _share_allocator()
        entries["session.use_env_allocators"] = "1"
        # A pattern asks for all of a run's memory in one piece, which the shared arena then keeps
        # beside the pieces of other programs: twice the memory for four blocks of YOLOv8n.
        chosen.enable_mem_pattern = False
        # A weight is packed in memory that is freed at once, not in the arena, which would keep it.
        entries["session.use_device_allocator_for_initializers"] = "1"
        entries["session.disable_prepacking"] = str(int(not packed))
    for key, value in entries.items():
        chosen.add_session_config_entry(key, value)
    return chosen


def make_session(
    model: bytes,
    chosen: ort.SessionOptions,
    without: Sequence[str] = (),
    providers: Sequence[str] = (CPU,),
) -> ort.InferenceSession:
    """A session of a serialised model, optimised `without` the passes of these names, on the first
    of `providers` that has each kernel.

    Raises:
        ImbrexError: the graph is invalid, or memory is short.
    """
    try:
        return ort.InferenceSession(
            model, chosen, providers=[*providers], disabled_optimizers=[*without]
        )
    except Exception as error:
        raise from_runtime(error, "making a session") from error


@cache
def _share_allocator() -> None:
    """Registers one arena for all sessions: 16 sessions then need the memory of one."""
    info = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    ort.create_and_register_allocator(info, ort.OrtArenaCfg(0, _SAME_AS_REQUESTED, -1, -1))


class Session(Runnable):
    """A session of a program, which reads `weight_bytes` of weights. `name` identifies its kernels;
    onnxruntime refers to `weights`, which are kept alive here.
    """

    def __init__(
        self,
        name: str,
        inference: ort.InferenceSession,
        weight_bytes: int = 0,
        weights: Sequence[ort.OrtValue] = (),
        blobs: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        super().__init__(
            {entry.name: _signature(entry) for entry in inference.get_inputs()},
            {entry.name: _signature(entry) for entry in inference.get_outputs()},
            blobs,
        )
        self._name = name
        self._inference = inference
        self._weights = tuple(weights)
        self._weight_bytes = weight_bytes

    def _bind(self, inputs: Arrays, shapes: WantedShapes) -> Ready[dict[str, np.ndarray]]:
        try:
            binding = self._inference.io_binding()
            for name, array in inputs.items():
                binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
            results: dict[str, np.ndarray] = {}
            dynamic = [name for name, shape in shapes.items() if shape is None]
            for name in (*dynamic, *(self.outputs.keys() - shapes.keys())):
                binding.bind_output(name, "cpu")
            for name, shape in shapes.items():
                if shape is not None:
                    results[name] = aligned_empty(shape, self.outputs[name].dtype)
                    value = ort.OrtValue.ortvalue_from_numpy(results[name])
                    binding.bind_ortvalue_output(name, value)
        except Exception as error:
            raise from_runtime(error, "running a program") from error

        def compute() -> dict[str, np.ndarray]:
            try:
                self._inference.run_with_iobinding(binding)
            except Exception as error:
                raise from_runtime(error, "running a program") from error
            if not dynamic:
                return results
            unbound = binding.get_outputs()  # in the order in which they were bound
            return results | {name: unbound[k].numpy() for k, name in enumerate(dynamic)}

        sizes = (inputs[name].shape for name in self.inputs)
        return Ready(compute, self._weight_bytes, (self._name, *sizes))


def _signature(entry: Any) -> Signature:
    dtype = _NUMPY_TYPES.get(entry.type)
    if dtype is None:
        raise BadInput(
            cause=f"the program's {entry.name!r} is a {entry.type}, which the wire does not carry",
            cure="Cut the program where plain tensors pass",
        )
    return Signature(dtype, tuple(size if isinstance(size, int) else None for size in entry.shape))


class SharedWeights:
    """Memory maps of blobs, shared by all sessions that name them and unmapped with the last."""

    def __init__(self) -> None:
        self._values: weakref.WeakValueDictionary[tuple[object, ...], Any] = (
            weakref.WeakValueDictionary()
        )

    def value(self, path: Path, dtype: np.dtype, dims: tuple[int, ...]) -> ort.OrtValue:
        """The blob's bytes as a page-aligned map.

        Raises:
            Unavailable: the file is gone or has another size.
        """
        key = (path.name, dtype, dims)
        value = self._values.get(key)
        if value is None:
            try:
                array = np.memmap(path, dtype, mode="r", shape=dims)
            except (OSError, ValueError) as error:
                raise Unavailable(
                    cause=f"the weights in {path} cannot be used: {error}",
                    cure="Prepare the program again; the weights are fetched anew",
                ) from error
            value = ort.OrtValue.ortvalue_from_numpy(array)
            self._values[key] = value
        return value


def from_runtime(error: Exception, doing: str) -> ImbrexError:
    """The error class for an exception of onnxruntime, which has no class for lack of memory."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or any(sign in text for sign in _NO_MEMORY):
        return OutOfMemory(
            cause=f"{doing}: not enough memory ({text[:200]})",
            cure="Stop other programs on this device, or plan smaller tiles",
        )
    if "INVALID_ARGUMENT" in text or type(error).__name__ == "InvalidArgument":
        return BadInput(
            cause=f"{doing}: {text[:400]}", cure="Send tensors of the shapes that the program takes"
        )
    return RunError(cause=f"{doing}: {text[:400]}", cure="See this worker's log")
