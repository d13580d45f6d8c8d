"""The memory that programs take on a device: one calculation for planners and workers.

A worker uses at most two thirds of its memory for weights and half of it for tensors; plans see to
it that both fit together. Weights are mapped from files, but preparing a program briefly takes
several times the size of those that the engine lays out anew.
"""

# Peak memory of preparing a program in multiples of the weights that are laid out anew, measured on
# VGG-16's blocks: they are read, laid out and written.
PEAK_OVER_WEIGHTS = 3
# Matrices of products, from this size on, stay as they are sent, and cost nothing but their map.
# The engine may fuse smaller ones with each other, such as those of an attention.
KEPT_FROM_BYTES = 5_000_000
# Larger ones are left to onnxruntime, which maps them, by engines that would hold them in memory of
# their own.
LARGEST_MATRIX_BYTES = {"ncnn": 16 << 20}
# A worker process (measured on x86-64: 66 MB, and 64 MB of pages of libraries, of which the kernel
# can drop what is not in use).
PROCESS_BYTES = 100_000_000
# Assumed: what a task moves is there three times while it travels, as pieces of gRPC's, as a
# message and as tensors. Without that, YOLOv8n at 3840x2176 was planned for 334 MB and took 590.
MORE_COPIES = 2
# One loaded program beyond its weights: graph, kernels, buffers of the runtime (measured: 6 MB
# for VGG-16's blocks, 10 MB for ResNet-50's).
PROGRAM_BYTES = 8_000_000


def megabytes(size_bytes: float, digits: int = 0) -> str:
    """A size for users, in MB of a million bytes, with this many decimals; to one significant digit
    if it would round to zero.
    """
    size_mb = size_bytes / 1e6
    is_small = 0 < size_mb < 0.5 * 10**-digits
    return f"{size_mb:.1g} MB" if is_small else f"{size_mb:.{digits}f} MB"


def weights_cap_bytes(memory_bytes: int) -> int:
    """Bytes of weights that a worker with this memory keeps loaded."""
    return memory_bytes * 2 // 3


def tensors_cap_bytes(memory_bytes: int) -> int:
    """Bytes of tensors that such a worker keeps for tasks."""
    return memory_bytes // 2


def engine_cap_bytes(memory_bytes: int) -> int:
    """Bytes that an engine beside onnxruntime may take, weights of its own included."""
    return memory_bytes // 2


def memory_for_bytes(weights: float) -> float:
    """The memory that a worker needs to keep so many bytes of weights loaded."""
    return weights * 3 / 2


def needed_bytes(
    programs: int, weights: float, relaid: float, tensors: float, activations: float, kept: float
) -> float:
    """The memory that a worker needs for `programs` programs with so many bytes of weights, of
    which the engine lays out at most `relaid` anew for one of them, when a task moves `tensors`
    bytes and needs `activations` bytes, and `kept` bytes of outputs stay until a request ends.
    """
    base = PROCESS_BYTES + programs * PROGRAM_BYTES
    return max(
        base + weights + activations + MORE_COPIES * tensors + kept,
        base + PEAK_OVER_WEIGHTS * relaid,
        memory_for_bytes(weights),
        tensors * 2,
    )


def weights_room_bytes(memory_bytes: int) -> float:
    """The most bytes of weights that a worker with this memory can hold, in one program."""
    return min(weights_cap_bytes(memory_bytes), memory_bytes - PROCESS_BYTES - PROGRAM_BYTES)


def relaid_room_bytes(memory_bytes: int) -> float:
    """The most bytes of weights that can be laid out anew for one program there."""
    return (memory_bytes - PROCESS_BYTES - PROGRAM_BYTES) / PEAK_OVER_WEIGHTS
