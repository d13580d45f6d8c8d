"""`auto` measures one device alone where a division gains little, and goes by that."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import onnx

from benchmarks.lab.pictures import for_pictures
from coordinator.answers import Answer
from coordinator.costs.rates import RateCosts
from coordinator.measuring.baseline import ProgramTimes, alone
from coordinator.service import Coordinator
from models.catalogue.catalogue import load
from models.vision.sidecar import dump, sidecar_path
from protos.failures import OutOfMemory
from tests.devices.support import worker_process
from tests.planning.test_single import classifier
from tests.whole.cluster import assert_right, coordinator, question

MODEL = "digits"


async def ask_until(host: Coordinator, happens: Callable[[Answer], bool]) -> None:
    """Asks until it happens at an answer; all answers are right."""
    feeds, whole = question(MODEL)
    async with asyncio.timeout(60):
        while True:
            answer = await host.infer(MODEL, feeds)
            assert_right(answer, whole)
            if happens(answer):
                return


async def test_single_device_is_measured_and_computes_all_if_faster(tmp_path) -> None:
    async with (
        worker_process(tmp_path / "one", PACE="0.1") as one,
        worker_process(tmp_path / "other", PACE="0.05") as other,
        coordinator(tmp_path / "host", [one.address, other.address], "auto") as host,
    ):
        await ask_until(host, lambda answer: len(answer.devices) == 2)
        measured = host.devices.measured
        plan, _ = await host.plans.current(MODEL)
        fastest = plan.baseline_device
        await ask_until(host, lambda _: measured.unsplit_s(MODEL, fastest) is not None)
        alone_s = measured.unsplit_s(MODEL, fastest)
        baseline = await host.measuring.baseline(MODEL)
        assert baseline.latency_s / 4 < alone_s < 4 * baseline.latency_s  # beside other tests
        await host.plans.settled()
        # As on a device whose engine is far better at whole maps than at tiles.
        measured.measured_unsplit(MODEL, fastest, alone_s / 10)
        host.plans.devices_changed("measured again", model=MODEL)
        await ask_until(host, lambda answer: answer.devices == (fastest,))


async def test_baseline_is_what_one_device_takes_by_all_of_its_engines(
    tmp_path, monkeypatch
) -> None:
    """ncnn does not take the whole network for pictures, whose end is a matrix of 26 MB."""
    file = tmp_path / "classifier.onnx"
    onnx.save(classifier(), file)
    pictures = for_pictures(load(str(file)))
    assert pictures is not None
    sidecar_path(file).write_text(dump(pictures))
    async with (
        worker_process(tmp_path / "one") as one,
        coordinator(tmp_path / "host", [one.address], "auto") as host,
    ):
        loaded = await host.library.load(str(file))
        assert loaded.served.network.graph.tensors["image"].wire is not None
        (device,) = host.devices.cluster().devices
        connection = host.devices.pool.connection(device.id)
        measure, measured, most = connection.measure, [], 3

        async def measuring(*told):
            if len(measured) == most:
                raise OutOfMemory(cause="no memory is left", cure="")
            measured.append(await measure(*told))
            return measured[-1]

        monkeypatch.setattr(connection, "measure", measuring)
        for gflops, programs in ((4, 1), (40, 3)):
            measured.clear()
            costs = RateCosts(4.0, others=(RateCosts(gflops, engine="ncnn"),))
            baseline = await alone(replace(device, costs=costs), connection, loaded)
            whole_s, *halves_s = (
                min(ProgramTimes.of(reply).seconds.values()) for reply in measured
            )
            assert len(measured) == programs
            assert baseline.latency_s == min(whole_s, sum(halves_s) or whole_s)
        measured.clear()
        most = 1
        baseline = await alone(replace(device, costs=costs), connection, loaded)
        assert [baseline.latency_s] == list(ProgramTimes.of(measured[0]).seconds.values())
