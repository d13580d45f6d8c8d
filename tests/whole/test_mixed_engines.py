"""Devices of different engines compute one plan: the answers are the whole model's."""

import asyncio
import contextlib

import pytest

from benchmarks.exports.files import FOLDER
from coordinator.planning.planners.strategies import STRATEGIES
from models.run.reference import compare, picture_inputs
from tests.devices.support import worker_process
from tests.whole.cluster import coordinator, question
from tests.worker.plugged import plant

ENGINES = ("ncnn", "openvino")
EXPORTED = "yolo11n"
WHOLE = ("digits", "vgg16-conv", "resnet50", "yolov2", "yolov8n", EXPORTED)


def programs(host):
    """How many programs engines other than onnxruntime compute; none may have been refused."""
    facts = [device.facts for device in host.device_statuses()]
    assert not any(each["refused"] for each in facts), facts
    return sum(each["engine_programs"] for each in facts)


def moved(model, traffic):
    """Bytes that do not depend on whether the input is a picture's pixels. Plans expect that of
    these detectors the best boxes are fetched, where the test takes all.
    """
    return (
        traffic.halo if "yolov8n" in model or EXPORTED in model else (traffic.gather, traffic.halo)
    )


async def largest_error(host, model, feeds, whole):
    """The largest error of all answers until no more programs are compared, and how many programs
    the engines compute then.
    """
    errors, before = [], None
    async with asyncio.timeout(300):
        while len(errors) < 4 or before != programs(host):
            before = programs(host)
            answer = await host.infer(model, feeds)
            errors.append(compare(answer.outputs, whole).max_rel_error)
            plan, _ = await host.plans.current(model)
            if plan.version == answer.plan_version and not answer.retried_tasks:
                assert moved(model, answer.traffic) == moved(model, plan.traffic)
            await asyncio.sleep(0.3)
            for connection in host.devices.pool.ready().values():
                connection.tell_members()
            await asyncio.sleep(0.1)
    return max(errors), before


async def compared_on(tmp_path, model, strategies, engines, within=(), **changes):
    """The largest error of each strategy, once the engines compute."""
    if model == EXPORTED:
        file = FOLDER / f"{model}.onnx"
        if not file.exists():
            pytest.skip(f"no file: python -m benchmarks.exports --networks {model}")
        model = str(file)
    # Of standard normal numbers, engines would leave YOLOv8n to onnxruntime: they differ by 6e-6.
    feeds, whole = question(model, picture_inputs)
    found = {}
    async with contextlib.AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                worker_process(tmp_path / f"{number}", within=within, ENGINE=engines[number % 2])
            )
            for number in range(4)
        ]
        addresses = [each.address for each in workers]
        for strategy in strategies:
            async with coordinator(tmp_path / strategy, addresses, strategy, **changes) as host:
                found[strategy], computed = await largest_error(host, model, feeds, whole)
        assert computed
    return found


def assert_exact(found):
    assert max(found.values()) <= 1e-5, f"more than 1e-05: {found}"


@pytest.fixture(params=ENGINES)
def mixed(request):
    """This engine on every other device."""
    pytest.importorskip(request.param, reason=f"needs the extra {request.param}")
    return (request.param, "onnxruntime")


async def test_a_mixed_cluster_is_exact(tmp_path):
    """Between devices, and by channels."""
    pytest.importorskip("ncnn", reason="needs the extra ncnn")
    mixed = ("ncnn", "onnxruntime")
    assert_exact(await compared_on(tmp_path, "digits", ["halo", "kcut"], mixed))


@pytest.mark.slow
@pytest.mark.parametrize("model", WHOLE)
async def test_every_strategy_is_exact_on_a_mixed_cluster(tmp_path, model, mixed):
    assert_exact(await compared_on(tmp_path, model, STRATEGIES, mixed))


async def test_the_comparison_finds_a_wrong_engine_that_nothing_checks(tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch, "Wrong")
    # The worker believes whatever its engine computes.
    (tmp_path / "packages" / "sitecustomize.py").write_text(
        "import worker.engines.comparison\n"
        "worker.engines.comparison.of_engine = lambda precision: 1.0\n"
    )
    wrong = ("wrong", "wrong")
    found = await compared_on(tmp_path, "digits", ["lw"], wrong, ("env",), audit_every=0)
    with pytest.raises(AssertionError, match="1e-05"):
        assert_exact(found)
