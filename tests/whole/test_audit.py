"""A worker whose results look right and are not, beside one that is honest."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import structlog

from coordinator.service import Coordinator
from models.onnx_file.builder import NetworkBuilder, square
from models.run.reference import WholeModel, compare
from tests.devices.support import worker_process
from tests.waiting import until
from tests.whole.cluster import (
    Feeds,
    assert_right,
    coordinator,
    plan_devices,
    settled,
    state_of,
)
from tests.worker.support import in_process
from worker.engines.base import Runnable, Traits

MOST_TASKS = 400  # of one device without a check, by default
PACE = 0.02


def noisy(array: np.ndarray) -> np.ndarray:
    """Noise of 1 % of the largest magnitude."""
    most = 0.01 * np.abs(array).max()
    return array + np.random.default_rng().uniform(-most, most, array.shape).astype(array.dtype)


def zeroed(array: np.ndarray) -> np.ndarray:
    """The first channel is zeros."""
    made = array.copy()
    made[:, 0] = 0
    return made


def network(folder: Path) -> tuple[str, Feeds, Feeds]:
    """A network worth dividing among slow devices; an input and the right answer."""
    net = NetworkBuilder("net", seed=3)
    x = net.input("image", (1, 3, 64, 64))
    for number, channels in enumerate((16, 32, 32), start=1):
        x = x.conv(f"conv{number}", channels, square(3)).relu()
    x = x.max_pool("pool", square(2, 2)).conv("conv4", 16, square(3)).relu()
    path = folder / "net.onnx"
    model = net.model(x.conv("conv5", 8, square(1)))
    onnx.save(model, path)
    feeds = {"image": np.random.default_rng(4).standard_normal((1, 3, 64, 64), np.float32)}
    return str(path), feeds, WholeModel(model, 1).run(feeds)


class Liar:
    """This process's worker lies while `spoil` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spoil: Callable[[np.ndarray], np.ndarray] | None = None
        self.lies = 0
        bound = Runnable.bound

        def wrong(session: Runnable, inputs: Any, shapes: Any) -> Any:
            ready = bound(session, inputs, shapes)

            def compute() -> dict[str, np.ndarray]:
                made = ready.compute()
                if self.spoil is None:
                    return made
                self.lies += 1
                return {name: self.spoil(array) for name, array in made.items()}

            return replace(ready, compute=compute)

        monkeypatch.setattr(Runnable, "bound", wrong)


@asynccontextmanager
async def beside_an_honest_one(
    folder: Path, strategy: str, **settings: object
) -> AsyncIterator[tuple[Coordinator, str, str]]:
    """A coordinator, the honest device's id, and that of this process's worker."""
    async with (
        worker_process(folder / "good", PACE=str(PACE)) as good,
        in_process(folder / "bad", pace=PACE) as bad,
        coordinator(folder / "host", [good.address, bad.address], strategy, **settings) as host,
    ):
        yield host, good.id, bad.id


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch) -> Liar:
    return Liar(monkeypatch)


@pytest.mark.parametrize("strategy", ["ofl", "lw", "halo"])
@pytest.mark.parametrize("spoil", [noisy, pytest.param(zeroed, marks=pytest.mark.slow)])
async def test_a_liar_is_found_by_the_audit_alone(
    liar: Liar, tmp_path: Path, spoil: Callable[[np.ndarray], np.ndarray], strategy: str
) -> None:
    model, feeds, whole = network(tmp_path)
    async with beside_an_honest_one(tmp_path, strategy) as (host, good, bad):
        answer = await host.infer(model, feeds)
        assert_right(answer, whole)
        assert bad in plan_devices(host, model)
        await settled(host)
        liar.spoil = spoil
        with structlog.testing.capture_logs() as logged:
            async with asyncio.timeout(120):
                while state_of(host, bad) == "ready":
                    wrong, answer = answer, await host.infer(model, feeds)
        assert liar.lies <= MOST_TASKS
        told = {device.id: device for device in host.device_statuses()}
        assert told[bad].state == "quarantined"
        assert "net" in told[bad].reason
        assert "of the largest magnitude" in told[bad].reason
        assert "imbrex resume" in told[bad].reason
        assert (told[bad].wrong_tasks, told[good].wrong_tasks) == (1, 0)
        (named,) = [each for each in logged if each["event"] == "these answers may be wrong"]
        # What was in flight began again.
        assert_right(answer, whole)
        assert wrong.request_id in named["requests"]
        await until(lambda: bad not in plan_devices(host, model))
        assert_right(await host.infer(model, feeds), whole)


async def test_a_device_whose_engine_promises_less_is_not_computed_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, feeds, whole = network(tmp_path)
    good, rough, state = (tmp_path / name for name in ("good", "rough", "host"))
    async with in_process(good) as exact:
        with monkeypatch.context() as there:
            there.setattr("worker.engines.onnxruntime.Traits", partial(Traits, tolerance=0.01))
            async with (
                in_process(rough) as other,
                coordinator(state, [exact.address, other.address], "halo", 1) as host,
            ):
                assert_right(await host.infer(model, feeds), whole)
                assert plan_devices(host, model) == (exact.id,)
                (told,) = [each for each in host.device_statuses() if each.id == other.id]
                assert told.state == "checking"
                assert "onnxruntime promises results within 0.01" in told.reason


@pytest.mark.parametrize(
    ("wire", "requests"),
    [
        ("int8", 6),
        *(pytest.param(wire, 30, marks=pytest.mark.slow) for wire in ("exact", "fp16", "int8")),
    ],
)
async def test_honest_devices_are_never_accused(tmp_path: Path, wire: str, requests: int) -> None:
    model, feeds, whole = network(tmp_path)
    limit = {"exact": 1e-5, "fp16": 0.01, "int8": 0.1}[wire]
    for strategy in ("halo", "lw"):
        folder = tmp_path / strategy
        async with beside_an_honest_one(folder, strategy, audit_every=1, wire=wire) as (host, *_):
            async with asyncio.timeout(120):
                for number in count():
                    told = host.device_statuses()
                    # Plans may leave out a device for a while.
                    audited = min(each.audited_tasks for each in told)
                    if number >= requests and audited >= requests * 2 // 3:
                        break
                    answer = await host.infer(model, feeds)
                    assert compare(answer.outputs, whole).max_rel_error <= limit
                    await settled(host)
            assert [each.state for each in told] == ["ready", "ready"]
            assert not any(each.wrong_tasks for each in told)


async def test_liar_from_the_beginning_never_computes(liar: Liar, tmp_path: Path) -> None:
    model, feeds, whole = network(tmp_path)
    liar.spoil = noisy
    async with beside_an_honest_one(tmp_path, "ofl", at_least=1) as (host, good, bad):
        await until(lambda: state_of(host, bad) == "quarantined")
        assert "entrance exam" in {each.id: each.reason for each in host.device_statuses()}[bad]
        for _ in range(5):
            answer = await host.infer(model, feeds)
            assert_right(answer, whole)
            assert answer.devices == (good,)


async def test_the_doctor_finds_a_liar_at_once(liar: Liar, tmp_path: Path) -> None:
    model, feeds, whole = network(tmp_path)
    async with beside_an_honest_one(tmp_path, "halo", audit_every=0) as (host, good, bad):
        assert_right(await host.infer(model, feeds), whole)
        await settled(host)
        assert not [
            each for each in (await host.doctor.examine()).findings if each.code == "quarantined"
        ]
        liar.spoil = zeroed
        found = [
            each for each in (await host.doctor.examine()).findings if each.code == "quarantined"
        ]
        assert [each.severity for each in found] == ["error"]
        assert "of the largest magnitude" in found[0].cause
        assert state_of(host, bad) == "quarantined"
        assert state_of(host, good) == "ready"
