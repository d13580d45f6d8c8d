"""What runs whole counts: by a formula, by its time, or as unknown."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import models.run.timed
from coordinator.costs.rates import RateCosts
from coordinator.planning.planners.auto import auto
from coordinator.planning.planners.propose import propose
from imbrex.cli import show
from imbrex.kinds.clusters import cluster_of
from imbrex.kinds.presets import load_kind
from models.catalogue import catalogue
from models.catalogue.loading import network_of
from models.check.summary import summarise
from models.cut.units import Network, divide
from models.graph.graph import Node
from models.onnx_file.importer import load_graph
from models.operators import whole_flop
from models.operators.work import tile_works
from models.run.timed import timed
from models.tensors.boxes import Box
from tests.cli.run_cli import imbrex
from tests.models.attention import Net
from tests.models.model_files import saved

RUNTIME = "com.microsoft"
STEPS, WIDTH = 16, 32


def recurrent(op: str, directions: int = 1, *, hidden: int = 128) -> tuple[Net, str, int]:
    """Convolutions, whose columns are the steps of a recurrent layer, and its FLOPs."""
    net = Net(1, 3, 32, 4 * STEPS)
    x = net.add("Relu", net.conv("x", 3, WIDTH, 3, stride=2))
    x = net.add("ReduceMax", net.conv(x, WIDTH, WIDTH, 3, stride=2), axes=[2], keepdims=0)
    steps = net.add("Transpose", x, perm=[2, 0, 1])
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    weights = [net.floats(directions, gates * hidden, size) for size in (WIDTH, hidden)]
    way = "bidirectional" if directions == 2 else "forward"
    made = net.add(op, steps, *weights, hidden_size=hidden, direction=way)
    flop = 2 * STEPS * directions * gates * hidden * (WIDTH + hidden)
    return net, made, flop


def loop(times: int, *, endless: bool = False) -> onnx.ModelProto:
    """A convolution, and a loop of small products that read weights from outside."""
    net = Net(1, 3, 16, 16)
    x = net.add("GlobalAveragePool", net.conv("x", 3, 64, 3))
    row = net.reshape(x, 1, 64)
    weights = net.floats(64, 64)
    kinds = [("n", TensorProto.INT64, []), ("go", TensorProto.BOOL, [])]
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["row", weights], ["product"]),
            helper.make_node("Tanh", ["product"], ["next"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            *(helper.make_tensor_value_info(*each) for each in kinds),
            helper.make_tensor_value_info("row", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, None),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
        ],
    )
    most = "" if endless else net.constant(np.array(times, np.int64))
    yes = net.constant(np.array(True))
    return net.model(net.add("Loop", most, yes, row, body=body))


def loaded(model: onnx.ModelProto, folder: Path) -> Network:
    return network_of(catalogue.load(str(saved(folder, model))))


def one(network: Network, op: str) -> Node:
    return next(node for node in network.graph.nodes if node.op == op)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_layer_counts_its_steps(op: str, directions: int) -> None:
    net, made, flop = recurrent(op, directions)
    graph = load_graph(net.model(made))
    (node,) = (node for node in graph.nodes if node.op == op)
    assert whole_flop(graph, node) == flop
    summary = summarise(divide(graph))
    others = sum(unit.flop for unit in summary.units if op not in unit.operators)
    assert flop <= summary.flop - others <= 1.02 * flop
    assert summary.partitioned_flop_share <= others / summary.flop


def test_products_of_few_bits_count_as_products() -> None:
    net, tokens, inner, outer, block = Net(1, 3, 8, 8), 64, 32, 48, 32
    x = net.tokens(net.conv("x", 3, inner), inner, tokens)
    packed = net.constant(np.zeros((outer, inner // block, block // 2), np.uint8))
    scales = net.constant(np.ones(outer * inner // block, np.float32))
    settings = {"K": inner, "N": outer, "bits": 4, "block_size": block}
    made = net.add("MatMulNBits", x, packed, scales, domain=RUNTIME, **settings)
    graph = load_graph(net.model(made))
    node = graph.nodes[graph.producer[made]]
    assert whole_flop(graph, node) == 2 * tokens * inner * outer


def test_other_heavy_operators_count_their_multiplications() -> None:
    net = Net(1, 8, 12, 12)
    offsets = net.floats(1, 18, 10, 10)
    deformed = net.add("DeformConv", "x", net.floats(6, 8, 3, 3), offsets)
    row = net.reshape(deformed, 6, 100)
    three = net.add("Einsum", row, row, net.floats(6), equation="ij,kj,k->ik")
    vector = net.add("MatMul", three, net.floats(6))
    graph = load_graph(net.model(vector, opset=19))
    flop = {node.outputs[0]: whole_flop(graph, node) for node in graph.nodes}
    assert flop[deformed] == 2 * 9 * 8 * 6 * 100
    assert flop[three] == 2 * 6 * 100 * 6
    assert flop[vector] == 2 * 6 * 6


def test_the_time_of_a_layer_whose_steps_wait_counts(tmp_path: Path) -> None:
    net, made, flop = recurrent("LSTM", 2)
    network = loaded(net.model(made), tmp_path)
    node = one(network, "LSTM")
    assert node.timed_flop > 0
    summary = summarise(network)
    assert summary.unknown == ()
    assert summary.partitioned_time_share < summary.partitioned_flop_share
    box = Box.whole(network.graph.shape(node.outputs[0]))
    (work,) = tile_works(network.graph, [node], {node.outputs[0]: box})
    assert work.flop == flop
    assert work.paced_flop == pytest.approx(4 * node.timed_flop)  # it keeps one of four cores busy
    assert RateCosts(1.0).block_s([work]) == pytest.approx(work.paced_flop * 1e-9)


def test_the_gain_follows_from_what_is_not_split(tmp_path: Path) -> None:
    """One device computes the recurrent layers, which are most of it."""
    net, made, _ = recurrent("LSTM", 2, hidden=256)
    cluster = cluster_of(load_kind("pi4-gbe"), 4)
    model = net.model(made)
    after = propose(auto, loaded(model, tmp_path), cluster)
    before = propose(auto, divide(load_graph(net.model(net.nodes[-2].output[0]))), cluster)
    assert after.single_device_latency_s > 2 * before.single_device_latency_s
    assert after.single_device_latency_s < 1.5 * after.predicted_latency_s


def test_loop_whose_cost_only_a_run_tells_is_timed(tmp_path: Path) -> None:
    short, long = (summarise(loaded(loop(times), tmp_path)) for times in (20, 20_000))
    assert long.flop > 50 * short.flop
    assert long.partitioned_flop_share < short.partitioned_flop_share / 10
    assert long.unknown == short.unknown == ()


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a loop that does not end, and little patience."""
    monkeypatch.setattr(models.run.timed, "_MOST_RUN_S", 0.2)
    return saved(tmp_path, loop(0, endless=True))


def test_a_loop_without_an_end_is_unknown_work(endless: Path, capsys) -> None:
    network = network_of(catalogue.load(str(endless)))
    summary = summarise(network)
    assert list(summary.unknown) == [one(network, "imbrex.Tail").name]
    show.show(str(endless), None, as_json=False)
    assert f"not known: the work of {summary.unknown[0]}" in capsys.readouterr().out
    show.show(str(endless), None, as_json=True)
    assert json.loads(capsys.readouterr().out)["unknown_work"] == [*summary.unknown]


def test_networks_too_large_to_be_run_here_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models.run.timed, "_MOST_FLOP_BEFORE", 1000)
    assert len(summarise(loaded(loop(20), tmp_path)).unknown) == 1


def test_equal_layers_are_timed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, _ = recurrent("LSTM", hidden=WIDTH)
    for _ in range(3):
        weights = [net.floats(1, 4 * WIDTH, WIDTH) for _ in range(2)]
        x = net.add(
            "LSTM",
            net.add("Squeeze", x, net.ints(1)),
            *weights,
            hidden_size=WIDTH,
            direction="forward",
        )
    timings: list[str] = []
    flop_of = models.run.timed._flop_of
    monkeypatch.setattr(models.run.timed, "_KEPT", {})
    monkeypatch.setattr(
        models.run.timed,
        "_flop_of",
        lambda graph, node, feeds: timings.append(node.name) or flop_of(graph, node, feeds),
    )
    graph = load_graph(net.model(net.add("Relu", x)))
    first, again = timed(graph), timed(graph)
    assert len(timings) == 1
    found = [node.timed_flop for node in first.nodes if node.op == "LSTM"]
    assert len(found) == 4
    assert len(set(found)) == 1
    assert found == [node.timed_flop for node in again.nodes if node.op == "LSTM"]


def test_node_that_fails_alone_is_timed_with_real_inputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(models.run.timed, "_KEPT", {})
    monkeypatch.setattr(models.run.timed, "_noise", lambda graph, node: {})
    net, made, _ = recurrent("LSTM")
    graph = timed(load_graph(net.model(made)))
    assert graph.nodes[graph.producer[made]].timed_flop > 0


def test_networks_without_such_nodes_stay_as_they_are() -> None:
    net = Net(1, 3, 32, 32)
    graph = load_graph(net.model(net.add("Relu", net.conv("x", 3, 8, 3))))
    assert timed(graph) is graph


def test_show_names_both_shares(tmp_path: Path) -> None:
    net, made, _ = recurrent("LSTM", 2)
    file = saved(tmp_path, net.model(made))
    report = imbrex("models", "show", file, "--json").json()
    assert report["partitioned_time_share"] < report["partitioned_flop_share"]
    assert "% of the time" in imbrex("models", "show", file).out
    assert math.isclose(sum(unit["flop"] for unit in report["units"]), report["flop"])
