"""Requests that make devices fail, or send what they refuse: they fail, and nobody else's."""

import asyncio
import sys
from contextlib import asynccontextmanager

import numpy as np
import onnx
import pytest
import pytest_asyncio
from onnx import TensorProto

from benchmarks.chaos.lying import DEADLY, DIES
from benchmarks.workers import WorkerProcess, coordinated, running
from coordinator.requests import driver
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel
from models.vision.model_families import About, described
from models.vision.sidecar import dump, sidecar_path
from protos.errors import RequestAtFault
from tests.models.test_pixels import taking
from tests.waiting import until
from tests.whole.cluster import assert_right, question, ready, settled

MODEL = "digits"
WORKERS = 4


@asynccontextmanager
async def cluster(tmp_path, *, dying: bool = False, **settings):
    """A coordinator in this process and workers in theirs, slow enough to share the work."""
    lie = tmp_path / "lie"
    lie.write_text(DIES if dying else "")
    within = [sys.executable, "-m", "benchmarks.chaos.lying", str(lie)]
    workers = [
        WorkerProcess(f"w{k}", tmp_path / f"w{k}", 0.2, within=within if dying else ())
        for k in range(WORKERS)
    ]
    async with (
        running(workers),
        coordinated(tmp_path / "host", workers, audit_every=0, **settings) as host,
        restarted(workers),
    ):
        yield host


@asynccontextmanager
async def restarted(workers):
    """As systemd does."""

    async def watch():
        while True:
            await asyncio.sleep(0.1)
            for each in workers:
                if each.child.process.poll() is not None:
                    await each.start()

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def losses(host) -> dict[str, int]:
    return dict(host.devices.pool.losses)


async def asked_all_along(host, feeds, whole, ended: asyncio.Event) -> int:
    """Somebody else's requests; every one of them is answered, and right."""
    answers = 0
    while not ended.is_set():
        assert_right(await host.infer(MODEL, feeds), whole)
        answers += 1
    return answers


@pytest.mark.parametrize("strategy", ["ofl", pytest.param("halo", marks=pytest.mark.slow)])
async def test_a_request_that_ends_devices_fails_at_the_third(tmp_path, strategy) -> None:
    feeds, whole = question(MODEL)
    (name,) = feeds
    deadly = {name: np.full(feeds[name].shape, 2 * DEADLY, np.float32)}
    async with cluster(tmp_path, dying=True, strategy=strategy) as host:
        assert_right(await host.infer(MODEL, feeds), whole)
        await settled(host)
        ended = asyncio.Event()
        others = asyncio.create_task(asked_all_along(host, feeds, whole, ended))
        with pytest.raises(RequestAtFault, match="devices ended while they computed"):
            await host.infer(MODEL, deadly)
        # All that had a part of it when the first one ended, one that may have come back before the
        # second one did, and the one that tried it alone.
        assert 3 <= sum(losses(host).values()) <= WORKERS + 2
        ended.set()
        assert await others
        # No device is blamed.
        assert not any(each.refused_results or each.wrong_tasks for each in host.device_statuses())


async def test_tensor_unlike_its_announcement_never_leaves(tmp_path, monkeypatch) -> None:
    """A fault of imbrex: the feeds are of another type than the tasks say."""
    feeds, whole = question(MODEL)
    (name,) = feeds
    async with cluster(tmp_path) as host:
        assert_right(await host.infer(MODEL, feeds), whole)

        async def as_they_are(graph, network, given):
            return graph, {name: given[name].astype(np.float64)}

        with monkeypatch.context() as planted:
            planted.setattr(host._input_variants, "fitting", as_they_are)
            with pytest.raises(RequestAtFault, match=r"float64.* announced as uint8"):
                await host.infer(MODEL, feeds)
        assert not losses(host)
        assert ready(host) == WORKERS
        assert_right(await host.infer(MODEL, feeds), whole)


async def test_a_request_that_workers_refuse_fails_at_the_second_and_they_stay(
    tmp_path, monkeypatch
) -> None:
    """A fault of imbrex: the header says another shape than the payload has."""
    feeds, whole = question(MODEL)
    async with cluster(tmp_path) as host:
        assert_right(await host.infer(MODEL, feeds), whole)
        await settled(host)
        items = driver.tensor_items
        ended = asyncio.Event()

        def wrong(action, graph, array):
            for item, view in items(action, graph, array):
                if action.request == "poison":
                    item.tensor.box.stop[-1] += 1
                yield item, view

        with monkeypatch.context() as planted:
            planted.setattr(driver, "tensor_items", wrong)
            others = asyncio.create_task(asked_all_along(host, feeds, whole, ended))
            with pytest.raises(RequestAtFault, match="refused what was sent"):
                await host.infer(MODEL, feeds, "poison")
        ended.set()
        assert await others
        assert set(losses(host)) == {"stream_refused"}
        await until(lambda: ready(host) == WORKERS)
        assert_right(await host.infer(MODEL, feeds), whole)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unharmed(tmp_path_factory):
    async with cluster(tmp_path_factory.mktemp("unharmed"), strategy="lw") as host:
        yield host


@pytest.mark.parametrize(
    ("layout", "channels", "kind"),
    [
        ("NCHW", 1, TensorProto.FLOAT),
        ("NHWC", 3, TensorProto.FLOAT),
        ("NHWC", 3, TensorProto.FLOAT16),
        ("HWC", 3, TensorProto.UINT8),
    ],
)
@pytest.mark.parametrize("is_described", [True, False])
@pytest.mark.asyncio(loop_scope="module")
async def test_legal_tensors_of_every_form_are_answered(
    unharmed, tmp_path, layout, channels, kind, is_described
) -> None:
    proto, file = taking(layout, channels, kind), tmp_path / "model.onnx"
    onnx.save(proto, file)
    plain = load_graph(proto)
    if is_described:
        about = described(plain, "tensor", None, (), "unit", About("model", file.name))
        sidecar_path(file).write_text(dump(about))
    info = plain.tensors["x"]
    rng = np.random.default_rng(4)
    bytes_ = rng.integers(0, 256, info.shape)
    for values in (rng.normal(0, 3, info.shape), bytes_, bytes_ / 255, np.zeros(info.shape)):
        feeds = {"x": values.astype(info.dtype)}
        answer = await unharmed.infer(str(file), feeds)
        assert_right(answer, WholeModel(proto, 1).run(feeds))
    assert not losses(unharmed)
