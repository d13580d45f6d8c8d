"""Programs: what a worker runs. An ONNX graph whose large constants are named by content.

A program's graph lists neither bytes nor files for its weights: each `WeightRef` names an
initialiser that the graph mentions but doesn't define, and the SHA-256 of its raw bytes. A
worker fetches those bytes once, keeps them, and adds the initialisers itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from onnx import helper

Array = np.ndarray


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
    """A cut piece of a network, ready to run.

    Sizes along rows and columns are symbolic in `graph`, so one program serves every tile of
    the same border class (the pads and crops that its position at the map's border needs).
    """

    graph: bytes = field(repr=False)
    weights: tuple[WeightRef, ...] = field(repr=False)

    @cached_property
    def sha256(self) -> str:
        """Name of the program on the wire: a hash of its graph and its weights' names."""
        digest = hashlib.sha256(self.graph)
        for ref in self.weights:
            digest.update(f"\n{ref.name} {ref.sha256} {ref.data_type} {ref.dims}".encode())
        return digest.hexdigest()


class BlobSource:
    """Weight bytes by hash, as the cutter leaves them for workers to fetch. Not a cache: it
    refers to arrays that the network holds anyway, or to slices made on demand.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def add(self, array: Array) -> str:
        """Registers an array and returns its hash."""
        flat = np.ascontiguousarray(array)
        digest = sha256_of(_raw(flat))
        self._arrays.setdefault(digest, flat)
        return digest

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._arrays

    def bytes_of(self, sha256: str) -> memoryview:
        """The raw bytes; KeyError for a hash that was never added."""
        return _raw(self._arrays[sha256])


def weight_bytes(refs: Sequence[WeightRef]) -> int:
    """Bytes of these weights, each content counted once."""
    unique = {ref.sha256: ref for ref in refs}
    return sum(_element_bytes(ref.data_type) * int(np.prod(ref.dims)) for ref in unique.values())


def _raw(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _element_bytes(data_type: int) -> int:
    return int(np.dtype(helper.tensor_dtype_to_np_dtype(data_type)).itemsize)
