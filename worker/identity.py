"""Who this worker is: an id made at its first start and kept, and facts about its machine."""

import os
import platform
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

import onnxruntime as ort
import psutil  # type: ignore[import-untyped, unused-ignore]

from protos.errors import BadConfiguration
from protos.files import write_atomically
from worker.condition import celsius, throttled
from worker.settings import WorkerSettings

_ID = re.compile(r"[0-9a-f]{16}")
_CPUFREQ = Path("/sys/devices/system/cpu")
_DEVICE_TREE_MODEL = Path("/proc/device-tree/model")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a coordinator wants to know of a device; see `DeviceFacts` on the wire."""

    id: str
    name: str
    machine: str
    cpu: str
    cores: int
    mhz_now: float
    mhz_max: float
    memory_bytes: int
    pace: float
    runtime: str
    boot_id: str
    threads: int
    concurrency: int = 1
    celsius: float = 0.0
    throttled: bool = False


def device_id(state_dir: Path) -> str:
    """The id kept in `state_dir`, made there if it is the first start.

    Raises:
        BadConfiguration: the directory cannot be used, or holds something else.
    """
    path = state_dir / "id"
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists():
            found = path.read_text().strip()
            if _ID.fullmatch(found):
                return found
            raise BadConfiguration(
                cause=f"{path} does not hold a device id",
                cure=f"Remove {path}; a new id is made at the next start",
            )
        made = uuid.uuid4().hex[:16]
        write_atomically(path, f"{made}\n".encode())
    except OSError as error:
        raise BadConfiguration(
            cause=f"the state directory {state_dir} cannot be used: {error.strerror or error}",
            cure="Set state_dir to a directory that this user may write",
        ) from error
    return made


def facts(settings: WorkerSettings, own_id: str) -> Facts:
    """The facts as they are now; frequency and free memory change."""
    now, most = _mhz()
    return Facts(
        id=own_id,
        name=settings.shown_name,
        machine=platform.machine(),
        cpu=cpu_model(),
        cores=settings.usable_cores,
        mhz_now=now,
        mhz_max=most,
        memory_bytes=settings.memory_bytes,
        pace=settings.pace,
        runtime=ort.__version__,
        boot_id=_boot_id(),
        threads=settings.task_threads,
        concurrency=max(1, settings.concurrency),
        celsius=celsius(),
        throttled=throttled(),
    )


def cpu_model() -> str:
    """The board's or the processor's name for people; `machine` where nothing says."""
    try:
        return _DEVICE_TREE_MODEL.read_bytes().rstrip(b"\0").decode(errors="replace")
    except OSError:
        return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_fingerprint() -> str:
    """What decides which kernels run: optimised programs are valid for one of these only."""
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


def _mhz() -> tuple[float, float]:
    """(now, max), the largest over all cores; 0 where the kernel doesn't say."""
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


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{os.uname().nodename}-{int(psutil.boot_time())}"
