"""A process's own cap on its memory. Raspberry Pi OS switches memory cgroups off, so a unit's
`MemoryMax` does nothing there.

A worker accounts for tensors and weights one by one (`worker.tasks`, `worker.compute.sessions`);
only the runtime knows what a network needs in between, and only FFmpeg what a camera sends. The
kernel refuses an allocation beyond the cap, the task or stream that asked for it fails, and process
and device go on.
"""

import asyncio
import ctypes
import resource
import threading
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
# Where a sixteenth for freed buffers is no loss.
_MUCH_BYTES = 768 << 20
# malloc keeps freed memory for the next buffers. After this long without any, it is returned.
_REST_S = 1.0
# RLIMIT_DATA counts the stacks of threads in full, of which they touch a few kilobytes: 8 MB for
# each of about 30 threads of gRPC and the runtime, and this for each of Python's.
_STACKS_BYTES = 256 << 20
_PYTHON_STACK_BYTES = 2 << 20
_STATUS = Path("/proc/self/status")


def give_back_memory() -> None:
    """Returns freed memory to the system, which malloc keeps for later (glibc only)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_buffers(memory_bytes: int = _MUCH_BYTES) -> None:
    """Makes malloc reuse freed tensor buffers instead of unmapping each and faulting in fresh pages
    (glibc only). The trim threshold bounds what is kept. A process that may use little memory keeps
    less, and has two arenas, since each keeps what it has freed (measured in a worker with VGG-16's
    tiles: 24 MB less than with an arena per thread).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 16 << 20)
        mallopt(_M_TRIM_THRESHOLD, min(memory_bytes, _MUCH_BYTES) >> 4)
        mallopt(_M_TOP_PAD, 1 << 20)
        if memory_bytes < _MUCH_BYTES:
            mallopt(_M_ARENA_MAX, 2)


class Rest:
    """Returns freed memory to the system once there has been a second of rest."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Memory has been freed; an earlier rest begins anew. On the event loop."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_REST_S, loop.run_in_executor, None, give_back_memory)


def cap_memory(budget_bytes: int) -> None:
    """Caps what this process may allocate beyond what it has now; never raises an existing cap.
    Threads that Python starts later have smaller stacks.
    """
    threading.stack_size(_PYTHON_STACK_BYTES)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = allocated_bytes() + budget_bytes + _STACKS_BYTES
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def free_bytes() -> int:
    """Bytes that can still be allocated: the system's free memory or what is left of the cap,
    whichever is less.
    """
    available = int(psutil.virtual_memory().available)
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY:
        return available
    return max(0, min(available, soft - allocated_bytes()))


def resident_bytes() -> int:
    """Bytes of memory that this process occupies."""
    return int(psutil.Process().memory_info().rss)


def allocated_bytes() -> int:
    """The bytes that count towards RLIMIT_DATA: private writable memory."""
    for line in _STATUS.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "VmData":
            return int(value.split()[0]) << 10
    return 0
