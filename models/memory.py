"""The memory that programs take on a device: one calculation for planners and workers.

A worker uses at most half of its memory for weights and half for tensors, and preparing a program
briefly takes several times the size of its weights.
"""

from __future__ import annotations

# Peak memory of preparing a program in multiples of its weights, measured on VGG-16's blocks: they
# are read, re-laid and written.
PEAK_OVER_WEIGHTS = 3
# An idle worker process (measured on x86-64: 108 MB resident, of which 48 MB are pages of libraries
# that the kernel can drop).
PROCESS_BYTES = 60_000_000
# One loaded program beyond its weights: graph, kernels, buffers of the runtime (measured: 6 MB
# for VGG-16's blocks, 10 MB for ResNet-50's).
PROGRAM_BYTES = 8_000_000
_HALVES = 2


def megabytes(size_bytes: float, digits: int = 1) -> str:
    """A size for users, in MB of a million bytes, with this many decimals."""
    return f"{size_bytes / 1e6:.{digits}f} MB"


def weights_cap_bytes(memory_bytes: int) -> int:
    """Bytes of weights that a worker with this memory keeps loaded."""
    return memory_bytes // _HALVES


def tensors_cap_bytes(memory_bytes: int) -> int:
    """Bytes of tensors that such a worker keeps for tasks."""
    return memory_bytes // _HALVES


def needed_bytes(
    programs: int, weights: float, largest: float, tensors: float, activations: float
) -> float:
    """The memory that a worker needs for `programs` programs, given the bytes of weights in all of
    them and in the largest, when a task moves `tensors` bytes and needs `activations` bytes.
    """
    base = PROCESS_BYTES + programs * PROGRAM_BYTES
    return max(
        base + weights + activations,
        base + PEAK_OVER_WEIGHTS * largest,
        _HALVES * weights,
        _HALVES * tensors,
    )


def program_room_bytes(memory_bytes: int) -> float:
    """The most bytes of weights in one program that a worker with this memory can prepare."""
    return (memory_bytes - PROCESS_BYTES - PROGRAM_BYTES) / PEAK_OVER_WEIGHTS
