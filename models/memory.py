"""What programs take of a device's memory: one arithmetic, for planners and workers alike.

A worker keeps half of its memory for weights and half for tensors at most, and making a program
ready takes several times its weights for a moment.
"""

from __future__ import annotations

# Peak of making a session in multiples of its weights, measured on VGG-16's blocks: read, re-laid,
# and written.
PEAK_OVER_WEIGHTS = 3
# A worker process before it holds anything (measured on x86-64: 108 MB resident, of which 48 MB
# are pages of libraries that the kernel can drop).
PROCESS_BYTES = 60_000_000
# One loaded program beyond its weights: graph, kernels, buffers of the runtime (measured: 6 MB
# for VGG-16's blocks, 10 MB for ResNet-50's).
PROGRAM_BYTES = 8_000_000
_HALVES = 2


def megabytes(size_bytes: float, digits: int = 1) -> str:
    """Bytes as users read them everywhere: of a million each; so many digits after the point."""
    return f"{size_bytes / 1e6:.{digits}f} MB"


def weights_cap_bytes(memory_bytes: int) -> int:
    """Weights that a worker with so much memory keeps loaded."""
    return memory_bytes // _HALVES


def tensors_cap_bytes(memory_bytes: int) -> int:
    """Tensors that such a worker keeps for tasks."""
    return memory_bytes // _HALVES


def needed_bytes(
    programs: int, weights: float, largest: float, tensors: float, activations: float
) -> float:
    """The memory with which a worker takes so many programs, of these bytes of weights in all and
    in the largest of them, when a task moves `tensors` and takes `activations` with them.
    """
    base = PROCESS_BYTES + programs * PROGRAM_BYTES
    return max(
        base + weights + activations,
        base + PEAK_OVER_WEIGHTS * largest,
        _HALVES * weights,
        _HALVES * tensors,
    )


def program_room_bytes(memory_bytes: int) -> float:
    """Weights of one program that a worker with so much memory takes at best."""
    return (memory_bytes - PROCESS_BYTES - PROGRAM_BYTES) / PEAK_OVER_WEIGHTS
