"""The processor: its name, the features that select kernels, its frequency, and how threads use it:
their priority, and whether they compute with subnormal numbers.
"""

import ctypes
import os
import platform
import threading
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

_CPUFREQ = Path("/sys/devices/system/cpu")
_DEVICE_TREE_MODEL = Path("/proc/device-tree/model")

# Sustained FLOPs per clock and core on 3x3 convolutions: a Pi 3's Cortex-A53 does 1.85,
# out-of-order Arm cores about twice that; x86-64 with AVX2 an order of magnitude more.
_FLOP_PER_CLOCK = {"aarch64": 2.5, "armv7l": 1.85, "x86_64": 24.0}
_UNKNOWN_MACHINE = 1.85
# glibc's fenv_t on x86-64: 32-bit words, of which the last is the register MXCSR.
_FENV_WORDS = 8
_FLUSH_TO_ZERO, _SUBNORMALS_ARE_ZERO = 1 << 15, 1 << 6
# The gain of each further core, on convolutions of the size of a tile.
_CORE_EFFICIENCY = 0.85


def cpu_model() -> str:
    """The display name of the computer or its processor; `machine` if neither is known."""
    try:
        return _DEVICE_TREE_MODEL.read_bytes().rstrip(b"\0").decode(errors="replace")
    except OSError:
        return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_fingerprint() -> str:
    """Everything that selects kernels: an optimised program is valid for one value only."""
    parts = (
        platform.machine(),
        _cpuinfo("model name") or cpu_model(),
        _cpuinfo("flags") or _cpuinfo("Features"),
    )
    return "|".join(parts)


def has_half_arithmetic() -> bool:
    """Whether it is a 64-bit Arm that computes with 16-bit floats, as that of a Pi 5 does."""
    return "asimdhp" in _cpuinfo("Features").split()


def _cpuinfo(field: str) -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == field:
                    return value.strip()
    except OSError:
        pass
    return ""


def cpu_gflops(cores: int, mhz: float) -> float:
    """An estimate of the GFLOP/s of convolutions on `cores` cores at `mhz` (0 counts as 1 GHz)."""
    per_clock = _FLOP_PER_CLOCK.get(platform.machine(), _UNKNOWN_MACHINE)
    return (mhz or 1000.0) * 1e-3 * per_clock * (1.0 + _CORE_EFFICIENCY * (cores - 1))


def mhz() -> tuple[float, float]:
    """(present, maximum) frequency in MHz, the highest over all cores; 0 if unknown."""
    now = [_khz(path) for path in _CPUFREQ.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")]
    most = [_khz(path) for path in _CPUFREQ.glob("cpu[0-9]*/cpufreq/cpuinfo_max_freq")]
    if now and most:
        return max(now), max(most)
    frequency = psutil.cpu_freq()
    if frequency is None:
        return 0.0, 0.0
    return frequency.current, frequency.max or frequency.current


def _khz(path: Path) -> float:
    try:
        return int(path.read_text()) / 1000
    except (OSError, ValueError):
        return 0.0


def settle_thread(nice: int) -> None:
    """Prepares this thread, and those that it starts later, for computing: others of a lower
    niceness than `nice` come first, and subnormal numbers are zero.
    """
    yield_to_others(nice)
    flush_subnormals()


def yield_to_others(nice: int) -> None:
    """Sets the niceness of this thread, and of those that it starts later, to at least `nice`."""
    thread = threading.get_native_id()
    # A service manager may have set a higher niceness: only root may lower it.
    if nice > os.getpriority(os.PRIO_PROCESS, thread):
        os.setpriority(os.PRIO_PROCESS, thread, nice)


def flush_subnormals() -> None:
    """Makes this thread, and those that it starts later, take numbers below 1.2e-38 as zero.

    An x86-64 processor takes a hundred times as long for a product with one of them, and a Softmax
    behind an attention mask is full of them. Elsewhere, this does nothing.
    """
    if platform.machine() != "x86_64":
        return
    try:
        libm = ctypes.CDLL("libm.so.6")
    except OSError:  # another C library
        return
    environment = (ctypes.c_uint32 * _FENV_WORDS)()
    libm.fegetenv(environment)
    environment[-1] |= _FLUSH_TO_ZERO | _SUBNORMALS_ARE_ZERO
    libm.fesetenv(environment)
