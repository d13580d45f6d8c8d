"""ncnn on the CPU: the extra `ncnn`, whose wheel for 64-bit Arm has 5 MB.

A program is translated for the input shapes of its first run (`ncnn_graph`); programs and shapes of
which this makes the same text share a net. A net has private memory for its weights, of several
times their size where Winograd's algorithm transforms them.
"""

import ctypes
import hashlib
import os
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from weakref import WeakValueDictionary

import numpy as np
import onnx

from models.cut.program import Program
from models.tensors.arrays import Shape, aligned_empty
from protos.failures import BadInput, OutOfMemory, RunError
from worker.engines.base import CompilingEngine, Place, Ready, Runnable, Signature, Traits
from worker.engines.ncnn_graph import NcnnGraph
from worker.engines.ncnn_layers import translate
from worker.engines.processor import cpu_fingerprint
from worker.programs.graphs import checked_model

# Before the import: its threads would otherwise spin between layers, and after a run.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import ncnn

NAME = "ncnn"

_NO_MEMORY = -100

# The memory of all runs, which would otherwise be each net's own. Nets and arrays refer to these
# without counting, also while Python ends.
_POOLS = (ncnn.PoolAllocator(), ncnn.PoolAllocator())
for _pool in _POOLS:
    _pool.set_size_compare_ratio(0.0)  # Any that is large enough: what was used last is in a cache.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_pool))

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


class Ncnn(CompilingEngine):
    """ncnn, in 32-bit floats."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.nets: WeakValueDictionary[str, Net] = WeakValueDictionary()
        self._loading = threading.Lock()
        version = ncnn.__version__
        fingerprint = f"{NAME}|{version}|{cpu_fingerprint()}"
        self.traits = Traits(NAME, version, "cpu", fingerprint, may_crash=True)

    def trial(
        self, program: Program, weights: Mapping[str, np.ndarray], threads: int
    ) -> "Translated":
        """The program with these weights and this many threads."""
        return Translated(self, program, weights, threads)

    def net(self, graph: NcnnGraph, threads: int) -> "Net":
        """A net of this graph, shared by all that are equal.

        Raises:
            OutOfMemory: it cannot be loaded.
        """
        digest = hashlib.sha256(f"{threads} {graph.tile}\n{graph.text}".encode())
        for array in graph.weights:
            digest.update(np.ascontiguousarray(array).data)
        key = digest.hexdigest()
        with self._loading:
            net = self.nets.get(key)
            if net is None:
                net = self.nets[key] = Net(graph, threads)
            return net


class Net:
    """A net of ncnn.

    Raises:
        OutOfMemory, RunError: it cannot be loaded.
    """

    def __init__(self, graph: NcnnGraph, threads: int) -> None:
        self._net = ncnn.Net()
        options = self._net.opt
        options.num_threads = threads
        options.blob_allocator, options.workspace_allocator = _POOLS
        for name in dir(options):
            if name.startswith(("use_fp16", "use_bf16", "use_int8", "use_vulkan")):
                setattr(options, name, False)
        # Its sums differ too much: 1.3e-5 in YOLOv8n.
        options.use_winograd63_convolution = False
        options.use_winograd43_convolution = graph.tile == 4
        if self._net.load_param_mem(graph.text):
            raise RunError(cause="ncnn cannot read what was written for it", cure="Report it")
        weights = _Weights(graph.weights)
        if self._net.load_model(weights) or not weights.is_read:
            raise OutOfMemory(
                cause="ncnn cannot load a program",
                cure="Stop other programs on this device, or plan smaller tiles",
            )

    def run(
        self, inputs: Mapping[str, np.ndarray], copied: Collection[str], outputs: Iterable[str]
    ) -> dict[str, np.ndarray]:
        """These blobs; inputs named in `copied` are copied first.

        Raises:
            OutOfMemory, RunError: a layer cannot be computed.
        """
        extractor = self._net.create_extractor()
        for blob, array in inputs.items():
            mat = ncnn.Mat(array)
            extractor.input(blob, mat.clone() if blob in copied else mat)
        arrays: dict[str, np.ndarray] = {}
        for blob in outputs:
            status, mat = extractor.extract(blob)
            if status == _NO_MEMORY:
                raise OutOfMemory(
                    cause="ncnn cannot compute a program: not enough memory",
                    cure="Stop other programs on this device, or plan smaller tiles",
                )
            if status:
                raise RunError(
                    cause=f"ncnn cannot compute a program (status {status})",
                    cure="Use onnxruntime for it",
                )
            arrays[blob] = np.asarray(mat)
        return arrays


class _Weights(ncnn.DataReader):  # type: ignore[misc, unused-ignore]
    """Weights as ncnn reads them, without a file: one array after the other. ncnn prepares a layer
    before it reads the next one, and holds Python's lock meanwhile.
    """

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        super().__init__()
        self._arrays = iter(arrays)
        self._left = len(arrays)

    @property
    def is_read(self) -> bool:
        """Whether ncnn has read everything."""
        return not self._left

    def read(self, buffer: object, size: int) -> int:
        """Copies the next array; 0 if it has another size."""
        time.sleep(0)  # lets other threads run
        array = next(self._arrays, None)
        if array is None or array.nbytes != size:
            return 0
        self._left -= 1
        plain = np.ascontiguousarray(array)
        ctypes.memmove(_pointer(buffer, None), plain.ctypes.data, size)
        return size


class Translated(Runnable):
    """A program that is translated for the shapes of each run."""

    def __init__(
        self, engine: Ncnn, program: Program, weights: Mapping[str, np.ndarray], threads: int
    ) -> None:
        graph = checked_model(program).graph
        super().__init__(_signatures(graph.input), _signatures(graph.output))
        self._engine = engine
        self._program = program
        self._weights = weights
        self._threads = threads
        self._loaded: dict[tuple[Shape, ...], tuple[NcnnGraph, Net]] = {}

    def _bind(
        self, inputs: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...] | None]
    ) -> Ready[dict[str, np.ndarray]]:
        key = tuple(inputs[name].shape for name in self.inputs)
        if key not in self._loaded:
            graph = translate(
                self._program, self._weights, dict(zip(self.inputs, key, strict=True))
            )
            self._loaded[key] = (graph, self._engine.net(graph, self._threads))
        graph, net = self._loaded[key]
        if None in shapes.values():
            raise BadInput(cause="the size of an output is not known", cure="Use onnxruntime")
        wanted = {name: (graph.outputs[name], shape) for name, shape in shapes.items() if shape}
        # As ncnn takes them: without the batch, contiguous, in 32 bits.
        entries = {
            entry.blob: np.ascontiguousarray(inputs[name].reshape(entry.shape), np.float32)
            for name, entry in graph.inputs.items()
        }
        copied = [entry.blob for entry in graph.inputs.values() if entry.copied]
        ends = {part.blob: None for parts in graph.outputs.values() for part in parts}

        def compute() -> dict[str, np.ndarray]:
            arrays = net.run(entries, copied, ends)
            return {
                name: _joined([arrays[part.blob][part.start : part.stop] for part in parts], shape)
                for name, (parts, shape) in wanted.items()
            }

        return Ready(compute)


def _joined(parts: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    """The parts, one after the other, as an array of this shape.

    Raises:
        RunError: they have another one.
    """
    first = parts[0]
    sizes = (1, sum(len(part) for part in parts), *first.shape[1:])
    if sizes != shape or any(part.dtype != np.float32 for part in parts):
        raise RunError(
            cause=f"ncnn made {first.dtype} of shape {sizes}, not float32 of shape {shape}",
            cure="Use onnxruntime for it",
        )
    if len(parts) == 1 and first.flags.c_contiguous:
        return first.reshape(shape)
    result = aligned_empty(shape, first.dtype)
    np.concatenate(parts, out=result[0])
    return result


def _signatures(values: Iterable[onnx.ValueInfoProto]) -> dict[str, Signature]:
    return {
        value.name: Signature(
            np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)),
            tuple(dim.dim_value or None for dim in value.type.tensor_type.shape.dim),
        )
        for value in values
    }
