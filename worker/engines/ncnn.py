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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakValueDictionary

import numpy as np
import onnx

from models.cut.program import Program
from models.tensors.arrays import Shape, aligned_empty
from models.tensors.memory import engine_cap_bytes
from models.tensors.precision import read_precision
from protos.failures import BadInput, OutOfMemory, RunError
from worker.engines.base import (
    CompilingEngine,
    Place,
    Ready,
    Runnable,
    Signature,
    Traits,
    WantedShapes,
)
from worker.engines.comparison import seconds_in_turn
from worker.engines.ncnn_graph import NcnnGraph
from worker.engines.ncnn_layers import translate
from worker.engines.processor import cpu_fingerprint, has_half_arithmetic
from worker.programs.graphs import checked_model

# Before the import: its threads would otherwise spin between layers, and after a run.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import ncnn
from onnx import GraphProto

from models.tensors.arrays import Arrays

NAME = "ncnn"

_NO_MEMORY = -100
# Nets of so many bytes of weights are loaded in two layouts, which make so many runs in turn.
_SMALL_BYTES, _ROUNDS = 2 << 20, 3

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
    """ncnn, in 32-bit floats, or in 16-bit floats where the model's precision allows it and the
    processor computes with them.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.nets: WeakValueDictionary[str, Net] = WeakValueDictionary()
        self._loading = threading.Lock()
        self._has_half = has_half_arithmetic()
        version = ncnn.__version__
        fingerprint = f"{NAME}|{version}|{cpu_fingerprint()}"
        self.traits = Traits(NAME, version, "cpu", fingerprint, may_crash=True)

    def trial(self, program: Program, weights: Arrays, threads: int) -> "Translated":
        """The program with these weights and this many threads."""
        model = checked_model(program)
        halves = self._has_half and read_precision(model) != "exact"
        return Translated(self, program, weights, NetOptions(threads, halves=halves), model.graph)

    @property
    def room_bytes(self) -> int:
        """What the weights of another net may take: half of what is left for nets, so that those
        that come later get some, too.
        """
        taken = sum(net.weight_bytes for net in list(self.nets.values()))
        return max(0, engine_cap_bytes(self._place.memory_bytes) - taken) // 2

    def net(self, graph: NcnnGraph, options: "NetOptions") -> "Net":
        """A net of this graph, shared by all that are equal.

        Raises:
            OutOfMemory: it cannot be loaded.
        """
        digest = hashlib.sha256(f"{options} {graph.tile}\n{graph.text}".encode())
        for array in graph.weights:
            digest.update(np.ascontiguousarray(array).data)
        key = digest.hexdigest()
        with self._loading:
            net = self.nets.get(key)
            if net is None:
                net = self.nets[key] = Net(graph, options)
            return net


@dataclass(frozen=True, slots=True)
class NetOptions:
    """How a net computes: with so many threads; with maps in packs of channels (`packs`), which are
    computed faster, but made of what enters, and taken apart in what leaves; in 16-bit floats
    (`halves`).
    """

    threads: int
    packs: bool = True
    halves: bool = False


class Net:
    """A net of ncnn.

    Raises:
        OutOfMemory, RunError: it cannot be loaded.
    """

    def __init__(self, graph: NcnnGraph, chosen: NetOptions) -> None:
        self.weight_bytes = graph.weight_bytes
        self._net = ncnn.Net()
        options = self._net.opt
        options.num_threads = chosen.threads
        options.blob_allocator, options.workspace_allocator = _POOLS
        for name in dir(options):
            if name.startswith(("use_bf16", "use_int8", "use_vulkan")):
                setattr(options, name, False)
            elif name.startswith("use_fp16"):
                setattr(options, name, chosen.halves)
        # Its sums differ too much: 1.3e-5 in YOLOv8n.
        options.use_winograd63_convolution = False
        options.use_winograd43_convolution = graph.tile == 4
        options.use_packing_layout = chosen.packs
        if self._net.load_param_mem(graph.text):
            raise RunError(cause="ncnn cannot read what was written for it", cure="Report it")
        weights = _Weights(graph.weights)
        if self._net.load_model(weights) or not weights.is_read:
            raise OutOfMemory(
                cause="ncnn cannot load a program",
                cure="Stop other programs on this device, or plan smaller tiles",
            )

    def run(
        self, inputs: Mapping[str, tuple[np.ndarray, bool]], outputs: Iterable[str]
    ) -> dict[str, np.ndarray]:
        """These blobs; inputs of which that is said are copied first.

        Raises:
            OutOfMemory, RunError: a layer cannot be computed.
        """
        extractor = self._net.create_extractor()
        for blob, (array, is_copied) in inputs.items():
            mat = ncnn.Mat(array)
            extractor.input(blob, mat.clone() if is_copied else mat)
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
        self,
        engine: Ncnn,
        program: Program,
        weights: Arrays,
        options: NetOptions,
        graph: GraphProto,
    ) -> None:
        super().__init__(_signatures(graph.input), _signatures(graph.output))
        self._engine = engine
        self._program = program
        self._weights = weights
        self._options = options
        self._loaded: dict[tuple[Shape, ...], tuple[NcnnGraph, Net]] = {}

    def _bind(self, inputs: Arrays, shapes: WantedShapes) -> Ready[dict[str, np.ndarray]]:
        key = tuple(inputs[name].shape for name in self.inputs)
        if None in shapes.values():
            raise BadInput(cause="the size of an output is not known", cure="Use onnxruntime")
        if key not in self._loaded:
            self._loaded[key] = self._load(inputs)
        graph, net = self._loaded[key]
        # A run of which nothing is taken computes everything, too.
        wanted = {name: graph.outputs[name] for name in shapes or graph.outputs}
        ends = {part.blob: None for parts in wanted.values() for part in parts}

        def compute() -> dict[str, np.ndarray]:
            arrays = net.run(graph.entries(inputs), ends)
            return {
                name: _joined(
                    [arrays[part.blob][part.start : part.stop] for part in parts], shapes.get(name)
                ).astype(self.outputs[name].dtype, copy=False)
                for name, parts in wanted.items()
            }

        return Ready(compute)

    def _load(self, inputs: Arrays) -> tuple[NcnnGraph, Net]:
        """The program for inputs like these, in the faster layout if both are loaded quickly."""
        shapes = {name: array.shape for name, array in inputs.items()}
        engine, threads = self._engine, self._options.threads
        graph = translate(self._program, self._weights, shapes, threads, engine.room_bytes)
        small = sum(array.nbytes for array in graph.weights) <= _SMALL_BYTES
        layouts = (True, False) if small else (True,)
        nets = [engine.net(graph, replace(self._options, packs=packs)) for packs in layouts]
        ends = {part.blob for parts in graph.outputs.values() for part in parts}
        entries = graph.entries(inputs)
        runs = [lambda net=net: partial(net.run, entries, ends) for net in nets]
        seconds = seconds_in_turn(runs, _ROUNDS if small else 0)
        return graph, nets[seconds.index(min(seconds))]


def _joined(parts: Sequence[np.ndarray], shape: Shape | None) -> np.ndarray:
    """The parts, one after the other, as an array of this shape; None: of the one that they have.

    Raises:
        RunError: they have another one.
    """
    first = parts[0]
    sizes = (1, sum(len(part) for part in parts), *first.shape[1:])
    if sizes != (shape or sizes) or any(part.dtype != np.float32 for part in parts):
        raise RunError(
            cause=f"ncnn made {first.dtype} of shape {sizes}, not float32 of shape {shape}",
            cure="Use onnxruntime for it",
        )
    if len(parts) == 1 and first.flags.c_contiguous:
        return first.reshape(sizes)
    result = aligned_empty(sizes, first.dtype)
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
