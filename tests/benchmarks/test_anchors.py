"""Published times: that rows are complete, and that the fit finds what is there to find."""

import json
import tomllib
from dataclasses import replace

import pytest

from benchmarks.anchors import work
from benchmarks.anchors.__main__ import (
    FORM,
    fitted,
    forms,
    main,
    predictions,
    preset_texts,
    rows,
    shipped,
    summary,
    times,
)
from benchmarks.anchors.fit import FORMS, PEAK_GFLOPS, Time, fit, held_out, slower
from benchmarks.anchors.real import document
from benchmarks.report import ROOT
from coordinator.costs.rates import RateCosts
from coordinator.planning.single_device import whole_works
from imbrex.kinds.presets import load_kind

CLASSES = "a rate per class"
PLANTED = RateCosts(
    80.0,
    rate_1x1=1.2,
    rate_depthwise=0.1,
    rate_product=0.5,
    map_byte_ns=0.3,
    weight_ns=shipped("pi5").weight_ns,
)


def test_rows_are_complete() -> None:
    sources = document()["sources"]
    keys = {"device", "network", "size", "engine", "precision", "threads", "ms", "source"}
    for row in rows():
        assert row.keys() - {"fps"} == keys
        assert row["ms"] > 0
        assert row["precision"] in ("f32", "16 bits", "int8")
        assert row["source"] in sources
        if "fps" in row:
            assert row["ms"] == pytest.approx(1000 / row["fps"], abs=0.05)
    measured = [json.dumps({key: row[key] for key in sorted(keys - {"ms"})}) for row in rows()]
    assert len(set(measured)) == len(measured)
    assert {row["source"] for row in rows()} == set(sources)


@pytest.mark.parametrize(
    "name", ["mobilenetv1", "mobilenetv2", "resnet50", "yolov8n", "yolox-nano", "yolox-s"]
)
def test_kept_work_is_that_of_the_networks(name: str) -> None:
    (network,) = work.networks((name,))
    assert work.kept()[name] == work.work_of(network)


def test_classes_cost_what_their_layers_cost() -> None:
    (network,) = work.networks(("mobilenetv2",))
    layers = whole_works(network)
    assert PLANTED.block_s(work.nodes_of(work.kept()["mobilenetv2"])) == pytest.approx(
        PLANTED.block_s(layers)
    )
    assert {work.class_of(layer) for layer in layers} == set(work.CLASSES)


def published(costs: RateCosts, device: str = "pi5") -> list[Time]:
    """Times that the costs would have taken."""
    return [
        replace(
            time,
            row=dict(time.row) | {"ms": 1e3 * costs.block_s(work.nodes_of(time.work))},
        )
        for time in times(device, "onnxruntime")
    ]


def test_the_fit_recovers_rates() -> None:
    found = fit(published(PLANTED), CLASSES, shipped("pi5"))
    for key in ("gflops", "rate_1x1", "rate_depthwise", "rate_product", "map_byte_ns"):
        assert getattr(found, key) == pytest.approx(getattr(PLANTED, key), rel=1e-6)
    errors = held_out(published(PLANTED), FORM, shipped("pi5"), lambda time: time.network)
    assert max(map(abs, errors)) > 0.02, "one rate cannot explain four"


def test_no_rate_is_beyond_the_processor() -> None:
    found = fit(published(replace(PLANTED, rate_1x1=4.0)), CLASSES, shipped("pi5"))
    assert found.gflops * found.rate_1x1 == pytest.approx(PEAK_GFLOPS)


def test_a_slower_device_is_found_by_one_number() -> None:
    base = replace(shipped("pi4"), weight_ns=3.0)
    slow = replace(PLANTED, gflops=20.0, map_byte_ns=1.2, weight_ns=3.0)
    costs, factor = slower(PLANTED, published(slow, "pi4"), base)
    assert factor == pytest.approx(4.0)
    assert costs.block_s(work.nodes_of(work.kept()["resnet50"])) == pytest.approx(
        slow.block_s(work.nodes_of(work.kept()["resnet50"]))
    )


def test_a_network_is_predicted_without_its_own_time() -> None:
    learned = times("pi5", "onnxruntime")
    spoiled = [
        replace(time, row=dict(time.row) | {"ms": 2 * time.row["ms"]}) if not index else time
        for index, time in enumerate(learned)
    ]
    before, after = (
        held_out(each, FORM, shipped("pi5"), lambda time: time.network)[0]
        for each in (learned, spoiled)
    )
    assert after + 1 == pytest.approx((before + 1) / 2)


def test_presets_are_what_was_fitted() -> None:
    for path, text in preset_texts().items():
        written, wanted = (tomllib.loads(each) for each in (path.read_text(), text))
        for key in ("gflops", "map_byte_ns"):
            assert written.pop(key) == pytest.approx(wanted.pop(key), rel=2e-3)
        assert written == wanted
        assert load_kind(str(path)).map_byte_ns > 0


def test_networks_that_were_left_out_are_predicted() -> None:
    found = [row for row in predictions() if "held_out" in row]
    assert len(found) >= 14
    quality = summary([row["held_out"] for row in found])
    assert quality["median"] <= 0.15
    assert quality["within_25"] >= 0.8
    assert quality["worst"] <= 0.4
    one, each = (test for form in (FORM, CLASSES) for test in forms() if test["form"] == form)
    assert one["without_network"] == quality
    assert one["without_network"]["median"] <= each["without_network"]["median"]
    assert each["untested"] == ["depthwise", "product"]
    assert list(FORMS) == [FORM, CLASSES]


def opencvs() -> list[float]:
    """Errors of the times that no preset was fitted to."""
    found = [row for row in predictions() if row["engine"] == "opencv"]
    return [row["preset"] for row in found if "preset" in row]


def test_the_page_on_hardware_says_what_is_found() -> None:
    page = " ".join((ROOT / "docs" / "hardware.md").read_text().split())
    quality = forms()[0]["without_network"]
    for words in (
        f"fitted to {len(times('pi5', 'onnxruntime'))} published times",
        f"within {quality['median']:.0%} (the median), the worst within {quality['worst']:.0%}",
        f"the same times {fitted()[1]:.2f}, and predicts OpenCV's times within "
        f"{max(map(abs, opencvs())):.0%}",
    ):
        assert words.replace("%", " %") in page


def test_a_pi_4_is_a_slower_pi_5() -> None:
    assert len(opencvs()) == 4
    assert max(map(abs, opencvs())) <= 0.3


def test_a_pi_3b_plus_is_half_a_pi_4() -> None:
    (row,) = (row for row in predictions() if row["device"] == "pi3bplus")
    assert abs(row["preset"]) <= 0.1


def test_the_command_says_what_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    skipped = [line for line in text.splitlines() if "skipped: imbrex neither" in line]
    assert len(skipped) == 6
    assert "  product: fitted, not tested" in text
    assert main(["--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["predicted"]) + len(result["others"]) == len(rows())
