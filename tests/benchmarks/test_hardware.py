"""The example cluster files are those of the presets, and planning for them never loses."""

import pytest

from benchmarks.hardware import CLUSTERS, EXAMPLES, example, plain_s, published
from coordinator.planning.planners.auto import auto
from coordinator.planning.planners.single import single
from coordinator.planning.simulate.simulator import simulate
from imbrex.described import load_cluster
from models.catalogue import catalogue
from models.catalogue.catalogue import load
from models.catalogue.loading import network_of

MIXED = [stem for stem, counts in EXAMPLES.items() if len(counts) > 1]
QUICK = ("digits", "mobilenetv2")


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
    ("kind", "model", "seconds"),
    [
        ("pi4-gbe", "resnet50", 0.46393),  # OpenCV
        ("pi4-gbe", "vgg16", None),
        ("pi4-gbe", "yolov8n", 0.56004),
        ("pi5-wifi", "yolov8n", 0.19869),
    ],
)
def test_seconds_of_real_devices_are_the_published_ones(kind, model, seconds):
    assert plain_s(published(kind, model)) == pytest.approx(seconds)


def test_ncnn_is_beside_what_it_takes_on_a_real_device():
    assert published("pi4-gbe", "yolov8n")["ncnn"] == pytest.approx(0.41473)


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
