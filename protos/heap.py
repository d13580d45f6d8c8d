"""The C heap of a daemon that moves tensors (glibc; elsewhere these do nothing)."""

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def give_back_memory() -> None:
    """Returns freed memory to the system, which malloc keeps for later (glibc only)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_buffers() -> None:
    """Makes malloc reuse freed tensor buffers instead of unmapping each and faulting in fresh pages
    (glibc only). The trim threshold bounds what is kept.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 16 << 20)
        mallopt(_M_TRIM_THRESHOLD, 48 << 20)
        mallopt(_M_TOP_PAD, 1 << 20)
