"""The effect of encoded maps and of half precision on the answer, against the whole model.

Half precision is shown as far as onnxruntime can: what nodes make, and the weights, are rounded to
float16; sums are in float32. A processor that also adds in half precision loses more."""

import statistics
from collections.abc import Set
from dataclasses import dataclass
from functools import partial

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from models.check.check import Blocking
from models.cut.cutter import cut
from models.cut.program import BlobSource
from models.cut.units import Network
from models.run.quantised_inputs import as_they_travel
from models.run.reference import ProgramRunner, answer, compare
from models.tensors.arrays import Arrays
from models.tensors.boxes import Box


@dataclass(frozen=True, slots=True)
class Effect:
    """The differences over all inputs. `top1_agreement` is the share of answers (of positions, if
    the output is a map) whose largest channel is the same; errors are relative to the largest
    magnitude of the output.
    """

    inputs: int
    top1_agreement: float
    max_rel_error: float
    median_rel_error: float

    def as_json(self) -> dict[str, object]:
        """As a dictionary of plain values."""
        return {
            "inputs": self.inputs,
            "top1_agreement": round(self.top1_agreement, 6),
            "max_rel_error": self.max_rel_error,
            "median_rel_error": self.median_rel_error,
        }


class Encoded:
    """Runs a network block by block as devices would, with its maps encoded between the blocks;
    `in_half`: its blocks are computed in half precision. The division of a block does not matter,
    as encodings work element by element.
    """

    def __init__(self, network: Network, blocking: Blocking, *, in_half: bool = False) -> None:
        self._graph = network.graph
        blobs = BlobSource()
        self._blocks = []
        for start, stop in blocking:
            names = network.outputs(start, stop)
            demand = {name: Box.whole(network.graph.shape(name)) for name in names}
            nodes = network.nodes(start, stop)
            self._blocks.append(cut(network.graph, nodes, demand, blobs, static=True))
        floats = {
            name
            for name, info in network.graph.tensors.items()
            if in_half and info.data_type == TensorProto.FLOAT and name in network.graph.producer
        }
        alter = partial(round_to_half, floats=floats) if in_half else _nothing
        self._runner = ProgramRunner(blobs, threads=0, altered=alter)

    def run(self, feeds: Arrays) -> dict[str, np.ndarray]:
        """The network's outputs."""
        tensors = as_they_travel(self._graph, feeds)
        for block in self._blocks:
            inputs = {
                name: np.ascontiguousarray(tensors[name][box.slices()])
                for name, box in block.inputs.items()
            }
            names = list(block.yields)
            tensors.update(zip(names, self._runner.run(block.program, inputs, names), strict=True))
        graph = self._graph
        return answer(graph.outputs, graph.joined, tensors, graph.ending)


class Differences:
    """Collects the differences of answers from the whole model's."""

    def __init__(self) -> None:
        self._errors: list[float] = []
        self._agreements: list[float] = []

    def add(self, actual: Arrays, expected: Arrays) -> None:
        """Adds the answers for one input."""
        self._errors.append(compare(actual, expected).max_rel_error)
        shares = []
        for name, right in expected.items():
            axis = min(1, right.ndim - 1)
            shares.append(float((actual[name].argmax(axis) == right.argmax(axis)).mean()))
        self._agreements.append(sum(shares) / len(shares))

    def effect(self) -> Effect:
        """The effect over all added answers, at least one."""
        return Effect(
            inputs=len(self._errors),
            top1_agreement=statistics.fmean(self._agreements),
            max_rel_error=max(self._errors),
            median_rel_error=statistics.median(self._errors),
        )


def _nothing(model: ModelProto) -> None:
    """Leaves a program as it is."""


def round_to_half(model: ModelProto, floats: Set[str]) -> None:
    """Has the model round its float32 weights, and those of its tensors that `floats` names;
    outputs that are encoded stay as they are.

    Values beyond 65504 become infinite.
    """
    graph = model.graph
    encoded = {
        output.name
        for output in graph.output
        if output.type.tensor_type.elem_type != TensorProto.FLOAT
    }
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            with np.errstate(over="ignore"):
                rounded = numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    nodes = []
    for node in graph.node:
        nodes.append(node)
        for k, name in enumerate(node.output):
            if name in floats - encoded:
                exact, half = f"{name}__exact", f"{name}__half"
                node.output[k] = exact
                nodes.append(helper.make_node("Cast", [exact], [half], to=TensorProto.FLOAT16))
                nodes.append(helper.make_node("Cast", [half], [name], to=TensorProto.FLOAT))
    made = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(made)
