"""A process's own cap on its memory. Raspberry Pi OS switches memory cgroups off, so a unit's
`MemoryMax` does nothing there.

A worker accounts for tensors and weights one by one (`worker.tasks`, `worker.compute.sessions`);
only the runtime knows what a network needs in between, and only FFmpeg what a camera sends. The
kernel refuses an allocation beyond the cap, the task or stream that asked for it fails, and process
and device go on.
"""

import resource
import threading
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

# RLIMIT_DATA counts the stacks of threads in full, of which they touch a few kilobytes: 8 MB for
# each of about 30 threads of gRPC and the runtime, and this for each of Python's.
_STACKS_BYTES = 256 << 20
_PYTHON_STACK_BYTES = 2 << 20
_STATUS = Path("/proc/self/status")


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
