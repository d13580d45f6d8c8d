"""ResNet-50 quantised by onnxruntime: a quarter of the bytes, and the whole int8 model's answer."""

from pathlib import Path

import onnxruntime as ort
import pytest

from benchmarks.int8 import MOST, NETWORK, quantised
from coordinator.planning.legal import check_plan
from coordinator.plans.named import strategy as planner_of
from models.catalogue.catalogue import load
from models.check.check import check, fused
from models.check.tolerance import SIGNED
from models.cut.units import Network, divide
from models.onnx_file.importer import load_graph
from models.run.quantised_inputs import with_quantised_inputs
from tests.planning.clusters import SLOW, cluster
from tests.planning.run_plan import difference


def network_of(proto) -> Network:
    return divide(with_quantised_inputs(load_graph(proto, NETWORK)))


@pytest.mark.slow
def test_a_quarter_of_the_bytes_and_every_bit_of_the_answer(tmp_path: Path) -> None:
    proto = load(NETWORK).proto
    model = quantised(proto, tmp_path, signed=False)
    some = cluster(*[SLOW] * 4)
    ratios = {}
    for name in ("auto", "lw", "efl", "ofl", "aofl", "halo", "elimination", "kcut"):
        moved = []
        for each in (network_of(proto), network_of(model)):
            plan = planner_of(name)(each, some)
            check_plan(plan, each, some)
            assert len(plan.devices) == 4
            moved.append(plan.traffic.scatter + plan.traffic.gather + plan.traffic.halo)
        ratios[name] = moved[1] / moved[0]
        assert difference(model, plan, network_of(model)).max_abs_error == 0.0, name
    assert max(ratios[name] for name in ("lw", "efl", "ofl", "aofl")) <= MOST, ratios
    # These buy time with bytes, where bytes are few.
    assert max(ratios["halo"], ratios["auto"]) < 2 * MOST, ratios


@pytest.mark.slow
def test_signed_steps_differ_only_where_onnxruntime_makes_them_unsigned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = quantised(load(NETWORK).proto, tmp_path, signed=True)
    network = network_of(model)
    report = check(model, network, (2, 2), fused(network))
    assert report.ok, report
    assert report.comparison.max_rel_error <= SIGNED
    plain = ort.SessionOptions

    def left_alone() -> ort.SessionOptions:
        options = plain()
        options.add_session_config_entry("session.qdqisint8allowed", "1")
        return options

    # What Arm's default is.
    monkeypatch.setattr(ort, "SessionOptions", left_alone)
    assert check(model, network, (2, 2), fused(network)).comparison.max_abs_error == 0.0
