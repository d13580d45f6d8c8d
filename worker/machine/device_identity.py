"""This worker's identity: an id created at its first start and kept, and facts about its
machine.
"""

import os
import platform
import re
import uuid
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

from protos.daemon.files import unusable, write_atomically
from protos.errors import BadConfiguration
from protos.wire.facts import DeviceId, Facts
from worker.engines.base import Engine
from worker.engines.processor import cpu_model, mhz
from worker.engines.verified import Standing, Verified
from worker.machine.machine import celsius, throttled
from worker.settings import WorkerSettings

_ID = re.compile(r"[0-9a-f]{16}")


def device_id(state_dir: Path) -> DeviceId:
    """The id kept in `state_dir`, created there at the first start.

    Raises:
        BadConfiguration: the directory cannot be used, or holds something else.
    """
    path = state_dir / "id"
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists():
            stored = path.read_text().strip()
            if _ID.fullmatch(stored):
                return DeviceId(stored)
            raise BadConfiguration(
                cause=f"{path} does not hold a device id",
                cure=f"Remove {path}; a new id is created at the next start",
            )
        new = DeviceId(uuid.uuid4().hex[:16])
        write_atomically(path, f"{new}\n".encode())
    except OSError as error:
        raise unusable(state_dir, error) from error
    return new


def facts(settings: WorkerSettings, own_id: DeviceId, engine: Engine) -> Facts:
    """The present facts; frequency and free memory change."""
    now, most = mhz()
    standing = engine.standing() if isinstance(engine, Verified) else Standing()
    return Facts(
        id=own_id,
        name=settings.shown_name,
        machine=platform.machine(),
        cpu=cpu_model(),
        cores=settings.usable_cores,
        mhz_now=now,
        mhz_max=most,
        memory_bytes=engine.memory_bytes(settings.memory_bytes),
        pace=settings.pace,
        runtime=engine.traits.version,
        boot_id=_boot_id(),
        threads=settings.task_threads,
        concurrency=max(1, settings.concurrency),
        celsius=celsius(),
        throttled=throttled(),
        engine=engine.traits.name,
        processor=engine.traits.processor,
        gflops=engine.gflops(settings.task_threads, most) * settings.pace,
        tolerance=engine.traits.tolerance,
        engine_programs=standing.programs,
        speedup=standing.speedup,
        engines=standing.engines,
        kept=standing.kept,
        refused=standing.refused,
        limits=engine.traits.limits,
    )


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{os.uname().nodename}-{int(psutil.boot_time())}"
