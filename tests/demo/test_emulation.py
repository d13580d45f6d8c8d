"""Emulated computers: what costs more than it does here, turns, daemons that are started so."""

import threading
import time

import numpy as np
import pytest

from coordinator.cluster import children
from imbrex.demo.emulation.settings import Emulation, command, load_emulation
from imbrex.demo.emulation.throttle import EmulatedThrottle
from imbrex.demo.emulation.turns import Turns
from models.boxes import Box
from protos.channels import Caller
from protos.client import WorkerClient
from protos.errors import BadConfiguration
from tests.worker.clock import FakeClock
from tests.worker.support import (
    conv_program,
    install,
    joined,
    picture,
    send,
    task_item,
    until_done,
    whole,
)
from worker.engines.base import Ready


@pytest.mark.parametrize(("task_s", "begins"), [(0.0, 0.2), (0.1, 0.2), (0.5, 0.5)])
def test_setting_up_is_not_paced_and_takes_what_it_takes(task_s, begins):
    clock = FakeClock()

    def begin():
        clock.work(0.2, 0.2)
        return Ready(lambda: clock.work(1.0, 1.0))

    throttle = EmulatedThrottle(0.5, Emulation(task_ms=1e3 * task_s), clock)
    timed = throttle.run(throttle.set_up(begin))
    assert timed.start_s == pytest.approx(100 + begins)
    assert timed.stop_s == pytest.approx(100 + begins + 2.0)


def test_weights_are_charged_apart_from_kernels_with_warm_caches():
    clock = FakeClock()
    cold = [3.0, 1.0]

    def compute():
        seconds = cold.pop(0)
        return clock.work(seconds, seconds)

    throttle = EmulatedThrottle(0.1, Emulation(weight_ns=1000), clock)
    timed = throttle.run(Ready(compute, weight_bytes=2_000_000))
    assert cold == []
    assert timed.stop_s - timed.start_s == pytest.approx(1.0 / 0.1 + 2.0)


def test_a_task_counts_as_its_quickest_try_while_the_pace_leaves_time_for_others():
    clock, seconds = FakeClock(), [3.0, 1.0, 2.0, 1.0]

    def compute():
        taken = seconds.pop(0)
        return clock.work(taken, taken)

    throttle = EmulatedThrottle(0.05, Emulation(tries=3), clock)
    timed = throttle.run(Ready(compute))
    assert timed.stop_s - timed.start_s == pytest.approx(1.0 / 0.05)
    assert seconds == [1.0]
    hurried = EmulatedThrottle(0.5, Emulation(tries=3), clock)
    timed = hurried.run(Ready(compute))
    assert timed.stop_s - timed.start_s == pytest.approx(1.0 / 0.5)


def test_workers_that_name_the_same_folder_compute_in_turns(tmp_path):
    emulation = Emulation(turns=tmp_path / "turns")
    computing, most = [], []

    def compute():
        computing.append(None)
        most.append(len(computing))
        others.wait(0.05)
        computing.pop()

    others = threading.Event()
    throttles = [EmulatedThrottle(1.0, emulation) for _ in range(3)]
    threads = [
        threading.Thread(target=throttle.run, args=(Ready(compute),)) for throttle in throttles
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for throttle in throttles:
        throttle.close()
    assert most == [1, 1, 1]


def test_equal_kernels_take_the_least_time_they_took_on_any_emulated_computer(tmp_path):
    clock, emulation = FakeClock(), Emulation(turns=tmp_path / "turns")
    slow, fast = (EmulatedThrottle(pace, emulation, clock) for pace in (0.1, 0.2))

    def seconds(throttle, cpu_s, *kernels):
        timed = throttle.run(Ready(lambda: clock.work(cpu_s, cpu_s), kernels=kernels))
        return timed.stop_s - timed.start_s

    assert seconds(slow, 2.0, "conv", (1, 3)) == pytest.approx(20.0)
    assert seconds(fast, 1.0, "conv", (1, 3)) == pytest.approx(5.0)
    assert seconds(slow, 3.0, "conv", (1, 3)) == pytest.approx(10.0)
    assert seconds(slow, 3.0, "conv", (1, 4)) == pytest.approx(30.0)
    assert seconds(slow, 2.0) == pytest.approx(20.0)
    assert seconds(slow, 3.0) == pytest.approx(30.0)
    for throttle in (slow, fast):
        throttle.close()


def test_a_worker_that_was_killed_while_it_kept_a_time_costs_that_time_only(tmp_path):
    turns = Turns(tmp_path)
    with turns.turn():
        assert turns.least(("conv",), 2.0) == 2.0
    (kept,) = tmp_path.iterdir()
    kept.write_text("")
    with turns.turn():
        assert turns.least(("conv",), 3.0) == 3.0
    turns.close()


def test_turns_that_are_no_folder_are_named(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(BadConfiguration, match="file"):
        Turns(file)


@pytest.mark.parametrize(
    ("text", "named"),
    [("task_ms = -1", "task_ms"), ("tusk_ms = 1", "tusk_ms"), ("task_ms", "cannot be used")],
)
def test_an_emulation_file_that_is_wrong_is_named(tmp_path, text, named):
    file = tmp_path / "emulation.toml"
    file.write_text(text)
    with pytest.raises(BadConfiguration, match=named) as refused:
        load_emulation(file)
    assert str(file) in str(refused.value)
    with pytest.raises(BadConfiguration, match=r"nothing\.toml"):
        load_emulation(tmp_path / "nothing.toml")


async def test_an_emulated_worker_charges_messages_tasks_and_weights(tmp_path):
    (tmp_path / "worker.toml").write_text(
        f"host = '127.0.0.1'\nport = 0\nmdns = false\nstate_dir = '{tmp_path}'\nthreads = 1\n"
    )
    (tmp_path / "emulation.toml").write_text("task_ms = 200\nmessage_ms = 30\nas_on_arm = true\n")
    child = children.start(
        "worker",
        ["worker", "--config", str(tmp_path / "worker.toml")],
        tmp_path,
        tmp_path / "ready.json",
        command(tmp_path / "emulation.toml"),
    )
    try:
        children.wait_until(lambda: child.ready() is not None, "not started", [child], 30)
        program, blobs = conv_program()
        async with WorkerClient(child.ready()["address"], Caller("host")) as client:
            await install(client, program, blobs)
            stream = client.exchange()
            box = Box.whole((1, 16, 12, 10))
            sent_s = time.monotonic()
            output = {"tensor": "y", "box": box, "yields": box}
            await stream.write([task_item(program, {"x": box}, [output])])
            await send(stream, "x", box, picture())
            pieces, (done,) = await until_done(stream)
            assert np.abs(joined(pieces, box) - whole(picture())).max() < 1e-5
            # Two messages in, one out, and the task: never less, whatever else this machine does.
            assert time.monotonic() - sent_s >= 3 * 0.030 - 0.002 + 0.200
            assert done.start_s - done.ready_s >= 0.199
    finally:
        children.stop([child])
