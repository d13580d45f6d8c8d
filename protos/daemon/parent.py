"""Processes that end with the one that started them, even if that was killed."""

import ctypes
import os
import signal
import sys

# Names the process that starts another one, to that.
PARENT_VARIABLE = "IMBREX_PARENT"
_PR_SET_PDEATHSIG = 1  # prctl(2)


def follow_parent() -> None:
    """Called in a child: it ends with the thread that started it."""
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if parent.isdecimal():
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):  # the parent ended before prctl was called
            sys.exit(1)
