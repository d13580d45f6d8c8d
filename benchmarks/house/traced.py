"""The command line of imbrex, which notes what of imbrex it calls: SIGUSR1 begins a window, SIGUSR2
ends it, and FOLDER/signals counts them. When the process ends it writes the functions that were
called in every window to FOLDER/called.json, as [file, name].

    python -m benchmarks.house.traced FOLDER python -m imbrex worker --port 0 ...
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from benchmarks.report import ROOT

_INSTALLED = f"{ROOT}/.venv"
CALLED, SIGNALS = "called.json", "signals"
LAMBDA = "<lambda>"

# What runs beside requests, or after them: what these call does not count.
ASIDE = frozenset(
    {
        *("Coordinator.settle", "Pool._tick", "Pool._follow_members", "Driver._tick"),
        *("Connection._watch", "Pinger.ping", "Auditor._audit", "Arbiter._asked"),
        # The health that gRPC reports, the lists of devices set aside, uvicorn's clock, planners.
        *("RpcServer._keep_health", "Withdrawal.follow", "_run", "_proposed"),
    }
)


class Recorder:
    """What is called between `begin` and `end`, in all threads."""

    def __init__(self, folder: Path) -> None:
        self.windows: list[set[CodeType]] = []
        self._signals = folder / SIGNALS
        self._open: set[CodeType] | None = None

    def called(self, frame: FrameType, event: str, _: Any) -> None:
        """What `sys.setprofile` wants."""
        window = self._open  # a signal may close it meanwhile
        if window is not None and event == "call" and not _is_aside(frame):
            window.add(frame.f_code)

    def begin(self, *_: Any) -> None:
        """Opens a window."""
        self._signals.write_text(str(2 * len(self.windows) + 1))
        self._open = set()

    def end(self, *_: Any) -> None:
        """Closes it."""
        if self._open is not None:
            self.windows.append(self._open)
        self._open = None
        self._signals.write_text(str(2 * len(self.windows)))

    def in_all(self) -> list[tuple[str, str]]:
        """Functions of imbrex that were called in every window: what goes on beside requests is
        not.
        """
        common = set[CodeType].intersection(*self.windows) if self.windows else set[CodeType]()
        found = {
            (str(Path(code.co_filename).relative_to(ROOT)), _name(code))
            for code in common
            if code.co_filename.startswith(f"{ROOT}/")
            and not code.co_filename.startswith(_INSTALLED)
            and (not code.co_name.startswith("<") or code.co_name == LAMBDA)
        }
        return sorted(pair for pair in found if not pair[0].startswith("benchmarks/"))


def _name(code: CodeType) -> str:
    """Lambdas are told apart by their lines."""
    line = f":{code.co_firstlineno}" if code.co_name == LAMBDA else ""
    return f"{code.co_qualname}{line}"


def _is_aside(frame: FrameType) -> bool:
    caller: FrameType | None = frame
    while caller is not None:
        if caller.f_code.co_qualname in ASIDE:
            return True
        caller = caller.f_back
    return False


def main() -> int:
    """Runs a command of imbrex."""
    folder = Path(sys.argv[1])
    sys.argv[1:] = sys.argv[sys.argv.index("imbrex") + 1 :]
    recorder = Recorder(folder)
    signal.signal(signal.SIGUSR1, recorder.begin)
    signal.signal(signal.SIGUSR2, recorder.end)
    threading.setprofile(recorder.called)
    sys.setprofile(recorder.called)
    from imbrex.cli.app import main as imbrex

    try:
        imbrex()
    finally:
        sys.setprofile(None)
        (folder / CALLED).write_text(json.dumps(recorder.in_all()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
