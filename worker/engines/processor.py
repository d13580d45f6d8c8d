"""The processor: its name, the features that select kernels, and its frequency."""

import platform
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

_CPUFREQ = Path("/sys/devices/system/cpu")
_DEVICE_TREE_MODEL = Path("/proc/device-tree/model")


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
