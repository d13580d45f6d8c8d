"""The example cluster files are those of the presets, and planning for them never loses."""

import pytest

from benchmarks.anchors.real import legend, told
from benchmarks.hardware import CLUSTERS, EXAMPLES, KINDS, MODELS, example, summary
from coordinator.planning.planners.auto import auto
from coordinator.planning.planners.single import single
from coordinator.planning.simulate.simulator import simulate
from imbrex.described import load_cluster
from models.catalogue import catalogue
from models.catalogue.catalogue import load
from models.catalogue.loading import network_of

MIXED = [stem for stem, counts in EXAMPLES.items() if len(counts) > 1]
QUICK = ("digits", "mobilenetv2")
COSTS = {"1": 0.1, "onnxruntime": 0.2, "4": 0.05}


@pytest.mark.parametrize("stem", EXAMPLES)
def test_example_files_are_those_of_the_presets(stem):
    file = CLUSTERS / f"{stem}.toml"
    assert file.read_text() == example(EXAMPLES[stem])
    devices = load_cluster(file).devices
    assert len(devices) == 4
    assert devices[0].host
    if stem.startswith("four"):
        assert [device.name for device in devices] == ["host", "pi-1", "pi-2", "pi-3"]


@pytest.mark.parametrize(
    ("kind", "model", "words"),
    [
        ("pi3bplus", "resnet50", "ncnn 587 ms (NCNN)"),
        ("pi3-1ghz", "yolov2", "Darknet 18.80 s (AOFL)"),
        ("pi3-1ghz", "resnet50", ""),
        ("pi4-gbe", "mobilenetv2", "OpenCV 67 ms (OZ)"),
        ("pi4-gbe", "resnet50", "ncnn 263 ms (NCNN), OpenCV 464 ms (OZ)"),
        ("pi4-gbe", "vgg16", ""),
        ("pi4-gbe", "yolov8n", "ncnn 415 ms, onnxruntime 560 ms (U82)"),
        ("pi5-wifi", "yolov8n", "onnxruntime 199 ms (U82)"),
    ],
)
def test_times_of_real_devices_are_named_with_engine_and_source(kind, model, words):
    assert told(kind, model) == words


def test_a_time_stands_beside_that_of_its_engine_alone():
    rows = {kind: {model: COSTS for model in MODELS} for kind in KINDS}
    (line,) = (row for row in summary(rows).splitlines() if row.startswith("| `resnet50`"))
    pi4 = "100 ms (ncnn 263 ms, NCNN) / 200 ms (OpenCV 464 ms, OZ), 50 ms: 2.0x"
    assert line.split(" | ")[2] == pi4
    assert legend([("pi4-gbe", "mobilenetv2")]).startswith("OZ: opencv/opencv_zoo")


@pytest.mark.parametrize("stem", MIXED)
@pytest.mark.parametrize(
    "model",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(catalogue.names())
    ],
)
def test_in_mixed_homes_nothing_is_slower_than_the_fastest_device(stem, model):
    network, cluster = network_of(load(model)), load_cluster(CLUSTERS / f"{stem}.toml")
    alone_s, together_s = (
        simulate(planner(network, cluster), network, cluster).latency_s
        for planner in (single, auto)
    )
    assert together_s <= alone_s * 1.000001
