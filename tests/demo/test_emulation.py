"""Emulated computers: what costs more than it does here, turns, daemons that are started so."""

import asyncio
import threading
import time
from contextlib import asynccontextmanager
from functools import partial

import numpy as np
import pytest

from coordinator.costs.rates import RateCosts
from coordinator.devices import children
from imbrex.demo.emulation import throttle as throttles
from imbrex.demo.emulation.rate import measured_core
from imbrex.demo.emulation.settings import Emulation, command, load_emulation
from imbrex.demo.emulation.throttle import EmulatedThrottle, Turns
from imbrex.demo.emulation.whole_maps import works_of
from models.tensors.boxes import Box
from protos.errors import BadConfiguration
from protos.rpc.channels import Caller
from protos.rpc.worker_client import WorkerClient
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


@pytest.mark.parametrize(("task_s", "begins"), [(0.0, 0.2), (0.1, 0.3), (0.5, 0.7)])
def test_setting_up_is_not_paced_and_starting_takes_what_it_takes(task_s, begins):
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


@pytest.mark.parametrize("slowdown", [1.0, 2.5])
def test_disturbance_of_a_core_is_not_charged(monkeypatch, slowdown):
    clock = FakeClock()

    def taking(seconds):
        return lambda: clock.work(slowdown * seconds, slowdown * seconds)

    monkeypatch.setattr(throttles, "reference", lambda: taking(0.002))
    slow = EmulatedThrottle(0.01, Emulation(reference_s=0.001), clock)
    timed = slow.run(Ready(taking(0.3)))
    # The pace is of a core on which the reference would take half as long as undisturbed here.
    assert timed.stop_s - timed.start_s == pytest.approx(0.3 / 2 / 0.01)


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


def computing(clock, times):
    def compute():
        taken = times.pop(0)
        clock.work(taken, taken)

    return compute


def test_equal_kernels_take_the_median_time_on_all_emulated_computers(monkeypatch, tmp_path):
    clock, emulation = FakeClock(), Emulation(turns=tmp_path / "turns", reference_s=0.5)
    monkeypatch.setattr(throttles, "reference", lambda: lambda: clock.work(1.0, 1.0))
    slow, fast = (EmulatedThrottle(pace, emulation, clock) for pace in (0.01, 0.02))

    def seconds(throttle, time, *kernels):
        timed = throttle.run(Ready(computing(clock, [time]), kernels=kernels))
        return timed.stop_s - timed.start_s

    assert seconds(slow, 8.0, "conv", (1, 3)) == pytest.approx(400.0)
    assert seconds(fast, 6.0, "conv", (1, 3)) == pytest.approx(175.0)
    assert seconds(slow, 5.0, "conv", (1, 3)) == pytest.approx(300.0)
    assert seconds(slow, 9.0, "conv", (1, 4)) == pytest.approx(450.0)
    # Without names, kernels cannot be known to be equal.
    assert seconds(slow, 7.0) == pytest.approx(350.0)
    assert seconds(slow, 5.0) == pytest.approx(250.0)
    for throttle in (slow, fast):
        throttle.close()


def test_a_short_kernel_is_timed_more_often_at_once(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(throttles, "reference", lambda: lambda: clock.work(1.0, 1.0))
    throttle = EmulatedThrottle(0.001, Emulation(reference_s=1.0), clock)
    times = [0.5, 0.1, 0.9, 0.3, 0.4, 0.2, 0.2, 0.2, 0.2, 0.2]
    # Those that fit within four references.
    timed = throttle.run(Ready(computing(clock, times)))
    assert timed.stop_s - timed.start_s == pytest.approx(200.0)
    assert len(times) == 1


@pytest.mark.parametrize(("pace", "measured"), [(0.01, 25), (0.1, 1)])
def test_kernels_are_measured_while_no_task_has_to_wait_for_it(
    monkeypatch, tmp_path, pace, measured
):
    clock, emulation = FakeClock(), Emulation(turns=tmp_path, reference_s=1.0, weight_ns=1.0)
    monkeypatch.setattr(throttles, "reference", lambda: lambda: clock.work(1.0, 1.0))
    throttle, times = EmulatedThrottle(pace, emulation, clock), [5.0] * 100
    for _ in range(30):
        throttle.run(Ready(computing(clock, times), kernels=("conv",)))
    # Each measured run follows one that warms the caches.
    assert 100 - len(times) == 30 + measured
    throttle.close()


def test_a_worker_that_was_killed_while_it_kept_a_time_costs_that_time_only(tmp_path):
    turns = Turns(tmp_path)
    with turns.turn():
        turns.keep(("conv",), [2.0, 3.0])
        assert turns.kept(("conv",)) == [2.0, 3.0]
    (kept,) = tmp_path.iterdir()
    kept.write_text("2.0 3.")
    with turns.turn():
        assert turns.kept(("conv",)) == [2.0, 3.0]
    kept.write_text("2.0 3.0e-")
    with turns.turn():
        assert turns.kept(("conv",)) == []
    turns.close()


def test_a_reference_is_measured_beside_the_core_that_it_stands_for():
    core = measured_core(3)
    assert 1 < core.gflops < 10_000
    assert 1e-5 < core.reference_s < 1.0


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


@asynccontextmanager
async def an_exchange(tmp_path, emulation: str, settings: str = ""):
    """A stream to an emulated worker, and a program that it has."""
    (tmp_path / "worker.toml").write_text(
        "host = '127.0.0.1'\nport = 0\nmdns = false\nthreads = 1\n"
        f"state_dir = '{tmp_path}'\n{settings}"
    )
    (tmp_path / "emulation.toml").write_text(emulation)
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
            yield client.exchange(), program
    finally:
        children.stop([child])


MAP = Box.whole((1, 16, 12, 10))
OUTPUT = {"tensor": "y", "box": MAP, "yields": MAP}


async def test_a_task_of_an_emulated_worker_takes_what_its_preset_says(tmp_path):
    # A hundred times slower than the pace: half a megaFLOP takes half a second.
    emulation = "rates = {gflops = 1e-3}\nreference_s = 1e-3\n"
    async with an_exchange(tmp_path, emulation, "pace = 0.5\n") as (stream, program):
        costs_s = RateCosts(1e-3).block_s(works_of(program, {"x": MAP.shape}))
        await stream.write([task_item(program, {"x": MAP}, [OUTPUT])])
        await send(stream, "x", MAP, picture())
        _, (done,) = await until_done(stream)
        assert done.stop_s - done.start_s >= 0.99 * costs_s > 0.5


async def test_an_emulated_worker_sets_a_task_up_before_its_input_is_there(tmp_path):
    async with an_exchange(tmp_path, "set_up_ms = 300\n") as (stream, program):
        task = partial(task_item, program, {"x": MAP}, [OUTPUT])
        await stream.write([task(task=1), task(task=2)])
        await send(stream, "x", MAP, picture(), task=1)
        _, (first,) = await until_done(stream)
        assert first.start_s - first.ready_s >= 0.299
        await asyncio.sleep(0.4)
        await send(stream, "x", MAP, picture(), task=2)
        _, (second,) = await until_done(stream)
        assert second.start_s - second.ready_s < 0.299


async def test_an_emulated_worker_charges_messages_tasks_and_weights(tmp_path):
    async with an_exchange(tmp_path, "task_ms = 200\nmessage_ms = 30\n") as (stream, program):
        sent_s = time.monotonic()
        await stream.write([task_item(program, {"x": MAP}, [OUTPUT])])
        await send(stream, "x", MAP, picture())
        pieces, (done,) = await until_done(stream)
        assert np.abs(joined(pieces, MAP) - whole(picture())).max() < 1e-5
        # Two messages in, one out, and the task: never less, whatever else this machine does.
        assert time.monotonic() - sent_s >= 3 * 0.030 - 0.002 + 0.200
        assert done.start_s - done.ready_s >= 0.199
