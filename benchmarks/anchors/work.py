"""What the networks of published times compute, by class of layer. `work.json` keeps it, so that
predicting takes no export.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import onnx

from benchmarks.anchors.mobilenetv1 import mobilenetv1
from benchmarks.anchors.yolox import FORMS, yolox
from benchmarks.exports.files import exported
from benchmarks.report import ROOT
from coordinator.planning.single_device import whole_works
from models.catalogue.catalogue import load
from models.catalogue.loading import network_of
from models.cut.units import Network, divide
from models.onnx_file.importer import load_graph
from models.onnx_file.stored import StoredModel
from models.operators.work import NodeWork

FILE = ROOT / "benchmarks" / "anchors" / "work.json"
CATALOGUE = ("mobilenetv2", "resnet50", "yolov8n")
BUILT: Mapping[str, Callable[[], StoredModel]] = {
    "mobilenetv1": mobilenetv1,
    **{name: partial(yolox, name) for name in FORMS},
}
EXPORTED = (
    *("rtdetr-resnet50", "yolo11n", "yolo11s", "yolov8s", "yolov9c", "yolov9m", "yolov9s"),
    "yolov9t",
)
# A layer of each class; costs ask for nothing else of it but its amounts.
CLASSES = {
    "dense": NodeWork("convolution", 0, 0, 0, 0, taps=9),
    "1x1": NodeWork("convolution", 0, 0, 0, 0),
    "depthwise": NodeWork("convolution", 0, 0, 0, 0, taps=9, groups=2),
    "product": NodeWork("product", 0, 0, 0, 0),
    "other": NodeWork("elementwise", 0, 0, 0, 0, lone=True),
    "fused": NodeWork("elementwise", 0, 0, 0, 0),
}


class Amounts(NamedTuple):
    """FLOPs and bytes of all layers of a class together."""

    flop: int
    map_bytes: int
    weight_bytes: int


# By class.
Work = Mapping[str, Amounts]


def class_of(work: NodeWork) -> str:
    """The class of layer by which `RateCosts` charges this node."""
    if work.layer_type == "convolution":
        return "1x1" if work.taps == 1 else "depthwise" if work.is_depthwise else "dense"
    if work.layer_type in ("fully_connected", "product"):
        return "product"
    return "fused" if work.is_fused else "other"


def work_of(network: Network) -> Work:
    """A network's work; without the bytes of what is fused, which cost nothing."""
    sums = {name: Amounts(0, 0, 0) for name in CLASSES}
    for node in whole_works(network):
        assert not node.pace, "a timed node has no class"
        name = class_of(node)
        map_bytes = 0 if name == "fused" else node.input_bytes + node.output_bytes
        more = Amounts(node.flop, map_bytes, node.weight_bytes)
        sums[name] = Amounts(*map(sum, zip(sums[name], more, strict=True)))
    return sums


def nodes_of(work: Work) -> list[NodeWork]:
    """One node for each class, of which `RateCosts` predicts the same seconds together."""
    return [
        CLASSES[name]._replace(
            flop=flop, input_bytes=map_bytes, weight_bytes=weight_bytes, output_pixels=flop
        )
        for name, (flop, map_bytes, weight_bytes) in work.items()
    ]


def networks(names: tuple[str, ...] = (*CATALOGUE, *BUILT, *EXPORTED)) -> Iterator[Network]:
    """Networks by their names in `work.json`, each as it is needed."""
    for name in names:
        if name in BUILT:
            yield divide(load_graph(BUILT[name]().complete(), name))
        elif name in EXPORTED:
            (file,) = exported([name])
            yield divide(load_graph(onnx.load(file), name))
        else:
            yield network_of(load(name))


def kept() -> dict[str, Work]:
    """The work of every network in `work.json`."""
    return {
        network: {name: Amounts(*amounts) for name, amounts in work.items()}
        for network, work in json.loads(FILE.read_text()).items()
    }


def count() -> None:
    """Writes `work.json`; exports what is missing."""
    lines = [
        f" {json.dumps(network.graph.name)}: {json.dumps(work_of(network))}"
        for network in networks()
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
