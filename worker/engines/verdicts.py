"""What has been found of an engine: which programs it may compute, and what is refused, and why."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from models.tensors.memory import megabytes
from worker.engines.comparison import Compared

# So many programs with wrong results, more than right ones, are not the conversion of one.
MOST_WRONG = 3
# An engine chosen for its speed loses a program that takes it longer than this, in multiples of
# onnxruntime's time; the timing of a busy device is not exact.
SLOWER = 1.1
_MOST_NAMED = 256

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Standing:
    """How an engine fares beside onnxruntime: it computes `programs`, `speedup` times as fast (0:
    not measured); `refused` names what it does not compute, and why.
    """

    programs: int = 0
    speedup: float = 0.0
    refused: str = ""


@dataclass(slots=True)
class Verdicts:
    """The findings; may be used by any thread. `room_bytes` is the memory that the programs of the
    engine may take; `by_speed` says whether it was chosen for its speed.
    """

    room_bytes: int
    by_speed: bool
    _engines: dict[str, str] = field(default_factory=dict)
    _programs: OrderedDict[str, str] = field(default_factory=OrderedDict)
    # `freed` is called when the garbage collector wants, also while this is held.
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _right: int = 0
    _wrong: int = 0
    _grown_bytes: int = 0
    _engine_s: float = 0.0
    _onnxruntime_s: float = 0.0

    def judge(self, sha256: str, seen: Compared, grown_bytes: int) -> bool:
        """Whether the engine may compute this program, for whose preparation the process has grown
        by `grown_bytes`.
        """
        with self._lock:
            self._grown_bytes += grown_bytes
        if not seen.is_right:
            self._wrong += 1
            self.refuse(sha256, f"differs by {seen.difference:.1e} of the largest magnitude")
            return False
        if self.by_speed and seen.engine_s > SLOWER * seen.onnxruntime_s:
            self.refuse(sha256, f"takes {seen.engine_s / seen.onnxruntime_s:.1f} times as long")
            return False
        self._right += 1
        self._engine_s += seen.engine_s
        self._onnxruntime_s += seen.onnxruntime_s
        return True

    def freed(self, grown_bytes: int) -> None:
        """What was prepared for a program is gone."""
        with self._lock:
            self._grown_bytes -= grown_bytes

    def against_the_engine(self) -> str:
        """Why the engine as a whole is not to be used; empty: it may be."""
        if self._wrong >= MOST_WRONG and self._wrong > self._right:
            return f"the results of {self._wrong} programs differ from onnxruntime's"
        if self._grown_bytes > self.room_bytes:
            return (
                f"its programs take {megabytes(self._grown_bytes)} of memory, and only "
                f"{megabytes(self.room_bytes)} are left for them"
            )
        return ""

    def is_refused(self, sha256: str) -> bool:
        """Whether onnxruntime is to compute this program."""
        return sha256 in self._programs

    def refuse(self, sha256: str, why: str) -> None:
        """onnxruntime is to compute this program."""
        _log.warning("onnxruntime computes a program", program=sha256[:12], cause=why)
        with self._lock:
            while len(self._programs) >= _MOST_NAMED:
                self._programs.popitem(last=False)
            self._programs[sha256] = why

    def refuse_engine(self, name: str, why: str) -> None:
        """onnxruntime is to compute all programs."""
        _log.error("engine refused", engine=name, cause=why)
        self.refuse_engines({name: why})
        self._right, self._engine_s, self._onnxruntime_s = 0, 0.0, 0.0

    def refuse_engines(self, refused: Mapping[str, str]) -> None:
        """These are not used."""
        with self._lock:
            self._engines |= refused

    def standing(self) -> Standing:
        """How the engine fares."""
        with self._lock:
            refused = [f"{name} is refused: {why}" for name, why in self._engines.items()]
            if self._programs:
                sha256, why = next(reversed(self._programs.items()))
                refused.append(
                    f"onnxruntime computes {len(self._programs)} of its programs, the last "
                    f"because {sha256[:12]} {why}"
                )
        speedup = self._onnxruntime_s / self._engine_s if self._engine_s else 0.0
        return Standing(self._right, speedup, "; ".join(refused))
