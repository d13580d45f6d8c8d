"""Layer-wise parallelism as published: a network's layers in training, with all costs between
them [Jia et al., section 5.1], so that the paper's own tables can be checked.

Layers are convolutions, pools, fully connected layers and concats; what stands between them
(activations, normalisation, flattening) belongs to the layer before.

    t_c    three times the forward FLOPs (forward, and backward to inputs and to weights) over the
           degree of parallelism
    t_x    what each device needs and does not own, there in the forward and back in the backward
           pass, over the bandwidth
    t_s    every copy of the parameters sends its gradients and receives the update
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coordinator.planning.geometry.box_arrays import common
from coordinator.planning.papers.elimination import CostGraph, Edge
from coordinator.planning.papers.layered import LayoutBoxes
from models.cut.tiles import even_spans
from models.graph.graph import Graph, Node
from models.operators import Kind, operator
from models.operators.work import node_work
from models.tensors.arrays import Floats, Ints
from models.tensors.boxes import Box

_LAYERS = frozenset({"Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "Gemm", "Concat"})
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Machine:
    """Equal devices, fully connected. Defaults: four P100 on one node with NVLink."""

    devices: int = 4
    flop_per_s: float = 5e12
    bytes_per_s: float = 15e9
    images_per_device: int = 32

    @property
    def batch(self) -> int:
        """Images of one step."""
        return self.devices * self.images_per_device


@dataclass(frozen=True, slots=True)
class Degrees:
    """A configuration {n, c, h, w}."""

    n: int
    c: int
    h: int
    w: int

    @property
    def devices(self) -> int:
        """Devices that it takes."""
        return self.n * self.c * self.h * self.w


class Training:
    """Layers, their configurations, and the boxes that follow from them."""

    def __init__(self, graph: Graph, machine: Machine) -> None:
        self.graph = graph
        self.machine = machine
        self.layers = [node for node in graph.nodes if node.op in _LAYERS]
        self.made_by: dict[str, int] = {}
        for node in graph.nodes:
            if node.op in _LAYERS:
                self.made_by[node.outputs[0]] = self.layers.index(node)
            elif node.inputs[0] in self.made_by:
                self.made_by[node.outputs[0]] = self.made_by[node.inputs[0]]
        self.degrees = [list(self._configurations(node)) for node in self.layers]
        self.outputs = [self._boxes(node, i) for i, node in enumerate(self.layers)]

    def cost_graph(self) -> CostGraph:
        """The computation graph with every cost function of Equation 1."""
        nodes = {i: self._node_s(node, i) for i, node in enumerate(self.layers)}
        edges = []
        for index, node in enumerate(self.layers):
            for place, name in enumerate(node.inputs):
                if name in self.made_by:
                    edges.append(self._edge(self.made_by[name], index, place))
        return CostGraph(nodes, tuple(edges))

    def _configurations(self, node: Node) -> Iterator[Degrees]:
        """Equal partitions over 1, 2, 4 .. devices of dimensions that can be divided."""
        _, *sizes = self.graph.shape(node.outputs[0])
        channels, height, width = (*sizes, 1, 1)[:3]
        powers = [2**k for k in range(self.machine.devices.bit_length())]
        most_channels = 1 if node.op == "Concat" else channels
        for n, c, h, w in itertools.product(powers, repeat=4):
            fits = c <= most_channels and h <= height and w <= width
            if fits and n * c * h * w <= self.machine.devices:
                yield Degrees(n, c, h, w)

    def _whole(self, tensor: str) -> Box:
        shape = (*self.graph.shape(tensor), 1, 1)[:4]
        return Box.whole((self.machine.batch, *shape[1:]))

    def _boxes(self, node: Node, index: int) -> list[list[Box]]:
        """Each device's box of the layer's output, per configuration."""
        whole = self._whole(node.outputs[0])
        return [
            [
                Box(spans)
                for spans in itertools.product(
                    even_spans(len(whole[0]), degree.n),
                    even_spans(len(whole[1]), degree.c),
                    even_spans(len(whole[2]), degree.h),
                    even_spans(len(whole[3]), degree.w),
                )
            ]
            for degree in self.degrees[index]
        ]

    def _node_s(self, node: Node, index: int) -> Floats:
        whole = Box.whole(self.graph.shape(node.outputs[0]))
        work = node_work(self.graph, node, whole, operator(node).reads(self.graph, node, whole))
        compute_s = 3 * work.flop * self.machine.batch / self.machine.flop_per_s
        update_s = 2 * work.weight_bytes / self.machine.bytes_per_s
        copies = [degree.devices // degree.c for degree in self.degrees[index]]
        return np.array(
            [
                compute_s / degree.devices + (update_s * copy if copy > 1 else 0.0)
                for degree, copy in zip(self.degrees[index], copies, strict=True)
            ]
        )

    def _edge(self, source: int, target: int, place: int) -> Edge:
        tensor = self.layers[source].outputs[0]
        needs = [
            [self._need(target, place, tensor, box) for box in output]
            for output in self.outputs[target]
        ]
        own, need = self._stack(self.outputs[source]), self._stack(needs)
        overlap = common(own[:, None, :, None], need[None, :, None, :])
        devices = range(self.machine.devices)
        sizes = LayoutBoxes(need, np.zeros(len(needs), dtype=np.bool_)).volumes
        moved = (sizes[None] - overlap[:, :, devices, devices]).sum(axis=-1)
        return Edge(source, target, 2 * moved * _FLOAT_BYTES / self.machine.bytes_per_s)

    def _need(self, target: int, place: int, tensor: str, box: Box) -> Box:
        """What a device that makes `box` reads of the output of the layer before."""
        node, whole = self.layers[target], self._whole(tensor)
        rank = len(self.graph.shape(node.outputs[0]))
        read = operator(node).reads(self.graph, node, Box(box[:rank]))[place]
        assert read is not None
        if operator(node).kind is Kind.MIXING or len(read) < len(self.graph.shape(tensor)):
            return whole.replace(0, box[0])
        return Box((box[0], *read[1:], *whole[len(read) :]))

    def _stack(self, boxes: list[list[Box]]) -> Ints:
        found = np.zeros((len(boxes), self.machine.devices, 4, 2), dtype=np.int64)
        for place, owned in enumerate(boxes):
            for device, box in enumerate(owned):
                found[place, device] = [(span.start, span.stop) for span in box]
        return found
