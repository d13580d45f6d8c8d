import asyncio
import os
import socket
import time

import pytest

from protos.daemon.supervision import serving
from tests.waiting import until


@pytest.fixture(params=["a path", "an abstract name"])
def systemd(request, tmp_path):
    """What systemd listens on, and the variable that names it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.setblocking(False)
        abstract = request.param == "an abstract name"
        name = f"imbrex-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
        listener.bind("\0" + name if abstract else name)
        yield listener, "@" + name if abstract else name


def heard(listener):
    found = []
    while True:
        try:
            found.append(listener.recv(4096).decode())
        except BlockingIOError:
            return found


async def test_ready_alive_and_stopping_are_told(systemd):
    listener, name = systemd
    environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid())}
    async with serving(environ):
        said = []
        await until(lambda: said.extend(heard(listener)) or said.count("WATCHDOG=1") >= 3)
        assert said[0] == "READY=1"
    assert heard(listener)[-1] == "STOPPING=1"
    assert environ == {}


async def test_a_loop_that_hangs_gives_no_sign_of_life(systemd):
    listener, name = systemd
    async with serving({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000"}):
        await until(lambda: "WATCHDOG=1" in heard(listener))
        heard(listener)
        time.sleep(0.1)  # noqa: ASYNC251 - for five periods the loop does nothing
        assert heard(listener) == []
        await until(lambda: "WATCHDOG=1" in heard(listener))


async def test_watchdog_of_another_process_is_not_ours(systemd):
    listener, name = systemd
    async with serving({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}):
        await asyncio.sleep(0)
    assert heard(listener) == ["READY=1", "STOPPING=1"]


async def test_supervision_without_systemd_does_nothing():
    async with serving({}):
        pass


async def test_a_socket_that_is_gone_is_no_reason_to_stop(tmp_path):
    async with serving({"NOTIFY_SOCKET": str(tmp_path / "gone")}):
        pass
