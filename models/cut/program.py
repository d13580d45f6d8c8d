"""Programs: what a worker runs. An ONNX graph whose large constants are named by content.

A program's graph lists neither bytes nor files for its weights: each `WeightRef` names an
initialiser that the graph mentions but doesn't define, and the SHA-256 of its raw bytes. A
worker fetches those bytes once, keeps them, and adds the initialisers itself.

A program can tell engines that it is a whole network, and which one: an engine that computes only
networks compiled beforehand finds its file by the SHA-256 of the ONNX file that it was compiled
from.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, helper

from models.graph.graph import Graph
from models.tensors.boxes import Box

Array = np.ndarray

# Bytes of a slice hashed at a time, which have to be copied into order first.
_RUN_BYTES = 1 << 20
_KEY = "network"


def sha256_of(data: bytes | memoryview) -> str:
    """Lower-case hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class WeightRef:
    """One initialiser of a program, by content.

    `sha256` is of the little-endian row-major bytes; it is empty in programs that are only
    measured, whose weights the worker fills with seeded random values.
    """

    name: str
    sha256: str
    data_type: int
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """The computation of one tile of a block, ready to run.

    Sizes along rows and columns are symbolic in `graph`, so one program serves every tile of
    the same border class (the pads and crops that its position at the map's border needs).
    """

    graph: bytes = field(repr=False)
    weights: tuple[WeightRef, ...] = field(repr=False)

    @cached_property
    def sha256(self) -> str:
        """The program's name on the wire: a hash of its graph and its weights' names."""
        digest = hashlib.sha256(self.graph)
        for ref in self.weights:
            digest.update(f"\n{ref.name} {ref.sha256} {ref.data_type} {ref.dims}".encode())
        return digest.hexdigest()


class Digests:
    """Hashes of boxes of a network's constants, so that a new plan only reads boxes that no earlier
    plan has hashed. Thread-safe.
    """

    # A digest and its key take about half a kilobyte; a plan of a deep network has a thousand.
    MOST = 8192

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[int, ...], Box], tuple[Array, str]] = {}
        self._lock = Lock()

    def of(self, constant: Array, view: Array, box: Box) -> str:
        """The hash of a box of `view`, a reshaped view of the immutable `constant`."""
        key = (id(constant), view.shape, box)
        with self._lock:
            found = self._known.get(key)
        if found is not None:
            return found[1]
        digest = _digest(view[box.slices()])
        with self._lock:
            if len(self._known) >= self.MOST:
                del self._known[next(iter(self._known))]
            # Holding the constant prevents reuse of its id.
            self._known[key] = (constant, digest)
        return digest


class BlobSource:
    """Weight bytes by hash, which the cutter provides for workers.

    It holds views of the network's constants, whose bytes are copied into order only while they are
    read, and arrays only for constants that the network does not have. It lives as long as the plan
    whose programs name these weights.
    """

    def __init__(self, digests: Digests | None = None) -> None:
        self._arrays: dict[str, Array] = {}
        self._digests = digests or Digests()

    def add(self, array: Array) -> str:
        """Keeps an array and returns its hash."""
        digest = _digest(array)
        self._arrays.setdefault(digest, array)
        return digest

    def add_box(self, constant: Array, box: Box, shape: Sequence[int] | None = None) -> str:
        """Refers to a box of an immutable constant, reshaped to `shape` if given; its hash."""
        view = constant if shape is None else constant.reshape(shape)
        digest = self._digests.of(constant, view, box)
        self._arrays.setdefault(digest, view[box.slices()])
        return digest

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._arrays

    def size_of(self, sha256: str) -> int:
        """Its length in bytes; KeyError for a hash that was never added."""
        return self._arrays[sha256].nbytes

    def array_of(self, sha256: str) -> Array:
        """The array, or the view of one; KeyError for a hash that was never added."""
        return self._arrays[sha256]

    def bytes_of(self, sha256: str) -> memoryview:
        """The raw bytes, all at once; KeyError for a hash that was never added."""
        return _raw(np.ascontiguousarray(self._arrays[sha256]))

    def chunks(self, sha256: str, offset: int, most_bytes: int) -> Iterator[memoryview]:
        """The raw bytes from `offset` on, in chunks of `most_bytes`, made lazily; KeyError for a
        hash that was never added.
        """
        for run in _runs(self._arrays[sha256], most_bytes):
            if offset >= len(run):
                offset -= len(run)
                continue
            for start in range(offset, len(run), most_bytes):
                yield run[start : start + most_bytes]
            offset = 0


def weight_bytes(refs: Sequence[WeightRef]) -> int:
    """Bytes of these weights, each content counted once."""
    unique = {ref.sha256: ref for ref in refs}
    return sum(
        int(np.dtype(helper.tensor_dtype_to_np_dtype(ref.data_type)).itemsize)
        * int(np.prod(ref.dims))
        for ref in unique.values()
    )


def _raw(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _digest(array: Array) -> str:
    digest = hashlib.sha256()
    for run in _runs(array, _RUN_BYTES):
        digest.update(run)
    return digest.hexdigest()


def _runs(array: Array, most_bytes: int) -> Iterator[memoryview]:
    """The elements in row-major order: as one view if they are contiguous, else copied in chunks of
    about `most_bytes`.
    """
    if array.flags.c_contiguous:
        yield _raw(array)
    elif array.nbytes <= most_bytes:
        yield _raw(np.ascontiguousarray(array))
    else:
        rows = max(1, most_bytes * len(array) // array.nbytes)
        for start in range(0, len(array), rows):
            part = array[start : start + rows]
            yield from _runs(part if len(part) > 1 else part[0], most_bytes)


class NetworkKey(NamedTuple):
    """What limits (`protos.wire.limits`) tell networks apart by: the SHA-256 of the ONNX file, the
    shapes of the inputs, and the types of inputs and outputs as they travel.
    """

    file: str
    shapes: frozenset[str]
    dtypes: frozenset[str]

    @classmethod
    def of(cls, graph: Graph) -> "NetworkKey":
        """The same of a graph."""
        shapes = ("x".join(map(str, graph.shape(name))) for name in graph.inputs)
        ends = (*graph.inputs, *graph.results)
        dtypes = (graph.tensors[name].on_wire.dtype.name for name in ends)
        return cls(graph.file, frozenset(shapes), frozenset(dtypes))


def write_file(model: ModelProto, file: str) -> None:
    """Notes in a program that it is all of a network; `file` is the SHA-256 of its ONNX file, empty
    if it has none.
    """
    model.metadata_props.add(key=_KEY, value=file)


def whole_network(program: Program) -> str | None:
    """The SHA-256 of the ONNX file that the program computes all of; empty if that network comes
    from no file. None: the program is a part of a network.
    """
    told = ModelProto.FromString(program.graph).metadata_props
    return {entry.key: entry.value for entry in told}.get(_KEY)
