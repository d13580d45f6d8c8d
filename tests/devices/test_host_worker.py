"""The coordinator's own worker: supervised, and gone with the coordinator."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from coordinator.devices import host_worker as module
from coordinator.devices.host_worker import WORKER, HostWorker
from coordinator.settings import CoordinatorSettings
from tests.devices.support import Watched
from tests.waiting import until
from tests.worker.support import ROOT


def told(state_dir, **changes):
    values = {"PORT": "0", "MDNS": "0", "STATE_DIR": str(state_dir), "THREADS": "1"} | changes
    return {f"IMBREX_WORKER_{key}": value for key, value in values.items()}


class Log(list):
    """A pool, as the supervisor tells it: ("up" or "down", address)."""

    def host(self, state_dir, command=WORKER, **changes):
        return HostWorker(
            state_dir,
            told(state_dir, **changes),
            self,
            command,
        )

    def sighted(self, address, source):
        assert source == "host"
        self.append(("up", address))

    def withdrawn(self, address):
        self.append(("down", address))


@pytest.fixture
async def log():
    return Log()


async def test_host_worker_is_in_the_pool_as_host_and_restarted_when_killed(tmp_path):
    watched = Watched()
    pool = watched.pool
    host = HostWorker(tmp_path, told(tmp_path), pool)
    await pool.start(watched, [])
    await host.start()
    try:
        await until(pool.ready)
        (device,) = pool.ready()
        assert pool.is_host(device)
        killed = host.pid
        os.kill(killed, signal.SIGKILL)
        await until(lambda: not pool.ready(), within_s=2.0)
        await until(pool.ready)
        assert list(pool.ready()) == [device]
        assert pool.is_host(device)
        assert host.pid != killed
        # The address of its first life is forgotten, not tried for ever.
        assert [peer.address for peer in pool.peers] == [pool.ready()[device].address]
        pid = host.pid
    finally:
        await host.stop()
        await pool.stop()
    assert not psutil.pid_exists(pid)
    assert not (tmp_path / "ready.json").exists()


async def test_host_worker_that_cannot_start_is_tried_ever_more_slowly(tmp_path, log, monkeypatch):
    monkeypatch.setattr("coordinator.devices.host_worker.FIRST_RETRY_S", 0.01)
    lives = tmp_path / "lives"
    host = log.host(tmp_path, ("sh", "-c", f"echo x >> {lives}; exit 3"))
    await host.start()
    await until(lambda: lives.exists() and len(lives.read_text().split()) >= 4)
    await host.stop()
    assert log == []


async def test_a_missing_program_does_not_end_supervision(tmp_path, log, monkeypatch):
    monkeypatch.setattr("coordinator.devices.host_worker.FIRST_RETRY_S", 0.01)
    python = tmp_path / "python"
    host = log.host(tmp_path, (str(python), *WORKER[1:]))
    await host.start()
    python.with_suffix(".new").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.with_suffix(".new").chmod(0o755)
    python.with_suffix(".new").rename(python)
    await until(lambda: log)
    await host.stop()
    assert [what for what, _ in log] == ["up", "down"]


async def test_a_worker_that_does_not_listen_to_sigterm_is_killed(tmp_path, log, monkeypatch):
    monkeypatch.setattr("coordinator.devices.host_worker.STOP_TIMEOUT_S", 0.2)
    host = log.host(tmp_path)
    await host.start()
    await until(lambda: log)
    pid = host.pid
    os.kill(pid, signal.SIGSTOP)
    await host.stop()
    assert not psutil.pid_exists(pid)


async def test_our_settings_are_not_handed_on(tmp_path, log, monkeypatch):
    monkeypatch.setenv("IMBREX_WORKER_PORT", "1")
    monkeypatch.setenv("IMBREX_WORKER_NONSENSE", "1")
    host = log.host(tmp_path)
    await host.start()
    await until(lambda: log)
    await host.stop()
    assert log[0][0] == "up"


COORDINATOR = """
import asyncio, sys
from pathlib import Path
from tests.devices.test_host_worker import Log

async def main():
    log, folder = Log(), Path(sys.argv[1])
    host = log.host(folder)
    await host.start()
    while not log:
        await asyncio.sleep(0.01)
    print(host.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_host_worker_does_not_outlive_a_killed_coordinator(tmp_path):
    coordinator = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", COORDINATOR, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        line = await asyncio.to_thread(coordinator.stdout.readline)
        pid = int(line)
        assert psutil.pid_exists(pid)
    finally:
        coordinator.kill()
        coordinator.wait()
        coordinator.stdout.close()
    killed_s = time.monotonic()
    await until(lambda: not _runs(pid), within_s=8.0)
    assert time.monotonic() - killed_s < 8.0


def _runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("given", "guarded", "expected"),
    [
        ({}, True, "127.0.0.1"),
        ({"host": "localhost"}, True, "127.0.0.1"),
        ({"host": "0.0.0.0"}, False, "127.0.0.1"),
        ({"host": "0.0.0.0"}, True, "192.168.1.20"),
        ({"host": "::"}, True, "192.168.1.20"),
        ({"host": "10.0.0.7"}, True, "10.0.0.7"),
        ({"host": "0.0.0.0", "host_worker": "10.0.0.8"}, True, "10.0.0.8"),
        ({"host_worker": "10.0.0.8"}, False, "10.0.0.8"),
    ],
)
def test_host_worker_listens_where_others_reach_the_machine(monkeypatch, given, guarded, expected):
    monkeypatch.setattr(module, "address_towards", lambda *_: "192.168.1.20")
    settings = CoordinatorSettings(**given)
    assert module.host_address(settings, is_guarded=guarded) == expected


def test_host_worker_without_a_network_listens_on_loopback(monkeypatch):
    def unreachable(*_):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(module, "address_towards", unreachable)
    settings = CoordinatorSettings(host="0.0.0.0")
    assert module.host_address(settings, is_guarded=True) == "127.0.0.1"
