"""Weights in a mapped file instead of memory: the system reads only what is used and may reclaim
the rest, and another process can read them too.

The file belongs to this process and is removed with the last of its arrays. The model's own file
would not do: if the model is exported again over it and the file gets shorter, reading the mapping
ends the process.
"""

import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# onnxruntime's alignment of tensors.
_ALIGNMENT = 64
_SUFFIX = ".weights"

_FILES: weakref.WeakKeyDictionary[mmap.mmap, Path] = weakref.WeakKeyDictionary()


class MappedWeights:
    """Room for arrays of these sizes in bytes, in a file of `folder`.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """

    def __init__(self, folder: Path, sizes: Iterable[int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._end = 0
        size = max(1, sum(map(_aligned, sizes)))
        handle, name = tempfile.mkstemp(_SUFFIX, dir=folder)
        try:
            # Writing to a mapping without room on the disk would end the process.
            os.posix_fallocate(handle, 0, size)
            self._memory = mmap.mmap(handle, size)
        except OSError:
            os.unlink(name)
            raise
        finally:
            os.close(handle)
        _FILES[self._memory] = Path(name)
        weakref.finalize(self._memory, Path(name).unlink, missing_ok=True)

    def empty(self, dtype: np.dtype[Any], shape: Sequence[int]) -> np.ndarray:
        """An uninitialised array in the file, or in memory if the file is full."""
        size = math.prod(shape) * dtype.itemsize
        if self._end + size > len(self._memory):
            return np.empty(tuple(shape), dtype)
        mapped = np.ndarray(tuple(shape), dtype, self._memory, self._end)
        self._end += _aligned(size)
        return mapped


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def remove_leftovers(folder: Path) -> None:
    """Removes files left by a process that was killed."""
    for left in folder.glob(f"*{_SUFFIX}"):
        left.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class ArrayLocation:
    """The location of an array in a file: `offset` of its first element and `strides`, in bytes."""

    path: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self) -> np.ndarray:
        """The array, mapped from the file and read-only."""
        whole = np.memmap(self.path, mode="r")
        return np.ndarray(self.shape, self.dtype, whole, self.offset, self.strides)


def location_of(array: np.ndarray) -> ArrayLocation | None:
    """The location of an array that is a view of mapped weights; None if it is not one."""
    base = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    memory = base.obj if isinstance(base, memoryview) else base
    if not isinstance(memory, mmap.mmap) or memory not in _FILES:
        return None
    start = np.frombuffer(memory, np.uint8).ctypes.data
    offset = array.ctypes.data - start
    return ArrayLocation(_FILES[memory], offset, array.dtype.str, array.shape, array.strides)
