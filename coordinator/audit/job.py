"""What is sent to the process that computes tasks again, and what it returns."""

import pickle
import struct
from dataclasses import dataclass, field
from typing import IO

import numpy as np

from models.onnx_file.mapped import ArrayLocation
from models.tensors.arrays import Arrays
from models.tensors.boxes import Box
from models.tensors.selection import Selection, as_read

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Weight:
    """An initialiser: its place in a file, or its bytes."""

    name: str
    data_type: int
    dims: tuple[int, ...]
    source: ArrayLocation | bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReceivedOutput:
    """What arrived of an output: a box of the tensor, or its entries of a selection; the program
    yields `yields`.
    """

    tensor: str
    box: Box
    yields: Box
    array: np.ndarray = field(repr=False)
    selection: Selection | None = None

    def read(self, expected: np.ndarray, tolerance: float) -> np.ndarray:
        """What should have arrived: `expected`, except where neither has an entry to select."""
        if self.selection is None:
            return expected
        return as_read(self.selection, self.array, expected, tolerance)


@dataclass(frozen=True, slots=True)
class AuditJob:
    """A program, its inputs, and what arrived of its outputs."""

    graph: bytes = field(repr=False)
    weights: tuple[Weight, ...] = field(repr=False)
    inputs: Arrays = field(repr=False)
    received: tuple[ReceivedOutput, ...] = field(repr=False)
    tolerance: float


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """The largest difference between an output and what it should be, relative to the largest
    magnitude of the latter; infinite if a value is not finite. `noise` is the same between two ways
    in which this onnxruntime can compute it, and is computed only if the difference is suspicious.
    """

    tensor: str
    difference: float
    noise: float = 0.0

    def is_wrong(self, tolerance: float) -> bool:
        """Whether no correct device could yield this."""
        return not self.difference <= tolerance + 4 * self.noise


def relative(actual: np.ndarray, expected: np.ndarray, whole: np.ndarray | None = None) -> float:
    """The largest difference over the largest magnitude of `whole`, which `expected` is part of."""
    if not expected.size:
        return 0.0
    with np.errstate(all="ignore"):
        a, b = actual.astype(np.float64), expected.astype(np.float64)
        difference = float(np.abs(a - b).max())
        magnitude = float(np.abs((expected if whole is None else whole).astype(np.float64)).max())
    if difference == 0.0:
        return 0.0
    if not np.isfinite(difference) or not magnitude:
        return float("inf")
    return difference / magnitude


def differing(actual: np.ndarray, expected: np.ndarray, limit: float) -> float:
    """The share of values that differ by more than `limit` of the largest magnitude."""
    if not expected.size:
        return 0.0
    with np.errstate(all="ignore"):
        a, b = actual.astype(np.float64), expected.astype(np.float64)
        return float(np.mean(~(np.abs(a - b) <= limit * np.abs(b).max())))


def send(stream: IO[bytes], value: object) -> None:
    """Writes one value."""
    data = pickle.dumps(value, protocol=5)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes]) -> object:
    """Reads one value; raises EOFError if there is none."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (size,) = _LENGTH.unpack(head)
    return pickle.loads(stream.read(size))  # noqa: S301 - from the process that started this one
