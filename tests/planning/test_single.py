"""`single`: one program, or two where different engines compute the halves faster."""

from dataclasses import replace

import onnx
import pytest

from coordinator.costs.cluster import Cluster
from coordinator.costs.rates import RateCosts
from coordinator.planning.legal import check_plan
from coordinator.planning.planners.auto import auto
from coordinator.planning.planners.single import single
from coordinator.planning.simulate.simulator import simulate
from coordinator.planning.single_device import best_alone, computing_s
from coordinator.tasks.plan import tile_works
from imbrex.kinds.clusters import cluster_of
from imbrex.kinds.presets import load_kind
from models.check.check import TOLERANCE
from models.cut.units import Network, divide
from models.onnx_file.builder import NetworkBuilder, square
from models.onnx_file.importer import load_graph
from protos.wire.facts import ONNXRUNTIME
from protos.wire.limits import Limits
from tests.planning.run_plan import difference
from tests.planning.support import MEMORY, device, real

NCNN = "ncnn"


def classifier() -> onnx.ModelProto:
    """Convolutions, and a matrix of 26 MB, which ncnn leaves to onnxruntime."""
    net = NetworkBuilder("classifier", seed=3)
    x = net.input("image", (1, 3, 64, 64)).conv("first", 8, square(3)).relu()
    x = x.conv("second", 8, square(3)).relu().flatten("flatten")
    return net.model(x.gemm("large", 200))


@pytest.fixture(scope="module")
def network() -> Network:
    return divide(load_graph(classifier()))


def engines(ncnn_gflops: float, **changes: object) -> Cluster:
    """A device of 4 GFLOP/s by onnxruntime, and of so many by ncnn."""
    other = RateCosts(ncnn_gflops, engine=NCNN)
    one = device("pi", 4.0, MEMORY, host=True, costs=RateCosts(4.0, others=(other,)))
    return Cluster((replace(one, **changes),))


def test_what_an_engine_leaves_out_at_the_end_is_another_program() -> None:
    network, one = real("vgg16"), cluster_of(load_kind("pi4-gbe"), 1)
    (only,) = one.devices
    plan = single(network, one)
    check_plan(plan, network, one)
    tasks = simulate(plan, network, one)
    assert [len(block.tiles) for block in plan.blocks] == [1, 1]
    works = [tile_works(network, block, block.tiles[0]) for block in plan.blocks]
    assert [only.costs.fastest(each).engine for each in works] == [NCNN, ONNXRUNTIME]
    assert plan.traffic == tasks.traffic
    assert plan.traffic.halo == 0, "what lies between stays on the device"
    (seconds,) = computing_s(network, one.devices)
    assert seconds == pytest.approx(sum(map(only.costs.block_s, works)))
    assert plan.single_device_latency_s == pytest.approx(plan.predicted_latency_s, rel=0.01)
    assert [b.stop for b in auto(network, one).blocks] == [b.stop for b in plan.blocks]


def test_two_programs_give_the_answer_of_the_whole_network(network: Network) -> None:
    plan = single(network, engines(40.0))
    assert len(plan.blocks) == 2
    assert difference(classifier(), plan, network).max_rel_error <= TOLERANCE


def test_one_program_computes_what_two_hardly_compute_faster(network: Network) -> None:
    assert len(single(network, engines(4.1)).blocks) == 1
    (with_both,), (with_one,) = (
        computing_s(network, (each,))
        for each in (*engines(4.1).devices, device("pi", 4.0, MEMORY, host=True))
    )
    assert with_both == pytest.approx(with_one)


def test_one_program_computes_what_was_measured_to_be_faster_so(network: Network) -> None:
    (seconds,) = computing_s(network, engines(40.0).devices)
    assert len(single(network, engines(40.0, unsplit_s=1.04 * seconds)).blocks) == 1
    assert len(single(network, engines(40.0, unsplit_s=1.06 * seconds)).blocks) == 2


def test_a_device_that_takes_whole_networks_gets_one_program(network: Network) -> None:
    assert best_alone(network, engines(40.0).devices).cut
    assert best_alone(network, engines(40.0, limits=Limits()).devices).cut == 0
