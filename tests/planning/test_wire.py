"""Plans whose maps travel encoded: their bytes, when they are chosen, how they are kept."""

import json
from dataclasses import replace

import pytest

from coordinator.costs.cluster import Link
from coordinator.planning.legal import check_plan
from coordinator.planning.plan_json import parse_plan, plan_json, save_plan
from coordinator.planning.planners.propose import propose
from coordinator.planning.simulate.simulator import simulate
from coordinator.plans.named import strategy
from coordinator.plans.sent_plan import adopt, plan_id
from models.catalogue.loading import ranges_of
from models.check.effect import Encoded
from models.cut.units import Network, divide
from models.onnx_file.builder import NetworkBuilder as Builder
from models.onnx_file.builder import square
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, compare, random_inputs
from models.tensors.precision import Wire
from protos.errors import BadRequest
from tests.planning.run_plan import run_plan
from tests.planning.support import cluster

DEVICES = cluster(0.5, 0.5, 0.5, link=Link(5e6, message_s=1e-4, latency_s=1e-4), host=False)


def proto():
    net = Builder("wired", seed=5)
    x = net.input("image", (1, 3, 32, 32))
    for number, channels in enumerate((8, 8, 16, 16), start=1):
        x = x.conv(f"conv{number}", channels, square(3)).relu()
    return net.model(x.max_pool("pool", square(2, 2)).conv("conv5", 8, square(3)))


MODEL = proto()


def network() -> Network:
    graph = load_graph(MODEL)
    return divide(graph, lambda: ranges_of(graph, (random_inputs(graph, seed) for seed in (7, 8))))


NETWORK = network()


@pytest.mark.parametrize("name", ["lw", "halo", "elimination"])
@pytest.mark.parametrize(("wire", "limit"), [("fp16", 2e-3), ("int8", 0.05)])
def test_encoded_plans_give_nearly_the_answer(name: str, wire: Wire, limit: float) -> None:
    plan = propose(strategy(name), NETWORK, DEVICES, wire)
    assert plan.wire == wire
    assert len(plan.devices) > 1
    feeds = random_inputs(NETWORK.graph)
    whole = WholeModel(MODEL, threads=1).run(feeds)
    answer = run_plan(plan, NETWORK, feeds)
    blocks = [(block.start, block.stop) for block in plan.blocks]
    assert compare(answer, Encoded(NETWORK.wired(wire), blocks).run(feeds)).max_rel_error <= 1e-5
    assert 1e-6 < compare(answer, whole).max_rel_error <= limit


def test_bytes_follow_the_wire() -> None:
    plan = propose(strategy("lw"), NETWORK, DEVICES)
    moved = {
        wire: simulate(replace(plan, wire=wire), NETWORK, DEVICES).traffic
        for wire in ("exact", "fp16", "int8")
    }
    answer = 4 * 8 * 16 * 16
    inner = {wire: each.gather - answer for wire, each in moved.items()}
    assert inner["exact"] == 2 * inner["fp16"] == 4 * inner["int8"] > 0
    scattered = moved["exact"].scatter - moved["fp16"].scatter
    assert moved["fp16"].scatter - moved["int8"].scatter == scattered / 2 > 0
    planned = propose(strategy("lw"), NETWORK, DEVICES, "fp16")
    assert planned.traffic == simulate(planned, NETWORK, DEVICES).traffic


def test_a_wire_is_used_only_where_it_is_allowed_and_faster() -> None:
    assert propose(strategy("lw"), NETWORK, DEVICES).wire == "exact"
    assert propose(strategy("lw"), NETWORK.wired("fp16"), DEVICES).wire == "exact"
    allowed = propose(strategy("lw"), NETWORK, DEVICES, "fp16")
    assert allowed.wire == "fp16"
    assert (
        allowed.predicted_latency_s < propose(strategy("lw"), NETWORK, DEVICES).predicted_latency_s
    )
    # One block has no boundary: nothing is won by a wire that changes the answer.
    assert propose(strategy("single"), NETWORK, DEVICES, "fp16").wire == "exact"


def test_a_saved_plan_keeps_its_wire() -> None:
    plan = propose(strategy("lw"), NETWORK, DEVICES, "fp16")
    saved = save_plan(plan_json(plan, NETWORK))
    assert parse_plan(saved, NETWORK) == replace(plan, made_for=())
    adopted = adopt(saved, NETWORK, DEVICES)
    assert (adopted.wire, adopted.traffic) == ("fp16", plan.traffic)
    check_plan(adopted, NETWORK, DEVICES)
    assert plan_id(plan) != plan_id(replace(plan, wire="exact"))
    document = plan_json(plan, NETWORK)
    assert document["wire"] == "fp16"
    older = {key: value for key, value in document.items() if key != "wire"}
    assert parse_plan(json.dumps(older), NETWORK).wire == "exact"
    with pytest.raises(BadRequest, match="wire"):
        parse_plan(json.dumps({**document, "wire": "fp8"}), NETWORK)
    bare = divide(load_graph(MODEL))
    with pytest.raises(BadRequest, match="the ranges"):
        adopt(json.dumps({**document, "wire": "int8"}), bare, DEVICES)
