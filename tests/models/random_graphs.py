"""Random CNN graphs: every operator of the table, with random attributes, in random places.

A node is proposed with whatever attributes come up, and kept if ONNX and onnxruntime accept it by
itself: so the generator knows no operator's rules, and cannot share a mistake with the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime as ort
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from models.graph.graph import OPSETS
from models.onnx_file.importer import load_graph
from models.run.reference import random_inputs

Draw = st.DrawFn
Proposal = Callable[[Draw, "Drawing", str], "Proposed | None"]
# Small enough for thousands of graphs; large enough for interiors beside borders.
MOST_ELEMENTS = 40_000
LARGEST = 1e4
SMALLEST = 1e-3
ANY_OPSET = st.integers(OPSETS.start, OPSETS.stop - 1)


@dataclass
class Proposed:
    """A node to try: its operator, all inputs, attributes, and how many outputs it has."""

    op: str
    inputs: list[str]
    attributes: dict[str, object] = field(default_factory=dict)
    outputs: int = 1
    domain: str = ""


@dataclass
class Drawing:
    """A graph as it grows. `values` holds what onnxruntime computed for every tensor, `proposals`
    the names of what it is made of.
    """

    opset: int
    rng: np.random.Generator
    values: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    proposals: list[str] = field(default_factory=list)

    def weight(self, array: np.ndarray) -> str:
        """A constant."""
        name = f"w{len(self.weights)}"
        self.weights[name] = array
        return name

    def floats(self, *shape: int, low: float = -0.6, high: float = 0.6) -> str:
        """A constant of random values."""
        return self.weight(self.rng.uniform(low, high, shape).astype(np.float32))

    def ints(self, *values: int) -> str:
        """A constant list of integers."""
        return self.weight(np.array(values, dtype=np.int64))

    def add(self, proposed: Proposed | None) -> list[str] | None:
        """The outputs of a proposed node; None if ONNX or onnxruntime refuse it, or if its
        values are of no use in a comparison.
        """
        if proposed is None:
            return None
        outputs = [f"t{len(self.nodes)}_{k}" for k in range(proposed.outputs)]
        node = helper.make_node(
            proposed.op,
            proposed.inputs,
            outputs,
            name=f"{proposed.op}_{len(self.nodes)}",
            domain=proposed.domain,
            **proposed.attributes,
        )
        results = self._try(node, outputs)
        if results is None or not all(_useful(array) for array in results):
            return None
        self.nodes.append(node)
        self.values.update(zip(outputs, results, strict=True))
        return outputs

    def _try(self, node: onnx.NodeProto, outputs: list[str]) -> list[np.ndarray] | None:
        feeds = {name: self.values[name] for name in node.input if name in self.values}
        model = self._model([node], feeds, {name: None for name in outputs})
        try:
            inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
            session = ort.InferenceSession(model.SerializeToString(), _quiet())
            results = list(session.run(outputs, feeds))
        except Exception:  # onnx and onnxruntime raise whatever they like
            return None
        shapes = [
            tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            for value in inferred.graph.output
        ]
        # Where the two disagree, no loader can know the shape; of some ONNX knows nothing.
        unknown = node.domain or node.op_type == "GroupNormalization"
        return results if unknown or shapes == [array.shape for array in results] else None

    def model(self, outputs: list[str]) -> onnx.ModelProto:
        """The whole graph."""
        kinds = {name: self.values[name] for name in outputs}
        return self._model(self.nodes, {"x": self.values["x"]}, kinds)

    def _model(self, nodes, feeds, outputs) -> onnx.ModelProto:
        used = {name for node in nodes for name in node.input}
        graph = helper.make_graph(
            nodes,
            "random",
            [_value(name, array) for name, array in feeds.items()],
            [_value(name, array) for name, array in outputs.items()],
            [
                numpy_helper.from_array(array, name)
                for name, array in self.weights.items()
                if name in used
            ],
        )
        domains = {node.domain for node in nodes if node.domain}
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(domain, 1) for domain in sorted(domains)]
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=8, doc_string=",".join(self.proposals)
        )


def _value(name: str, array: np.ndarray | None) -> onnx.ValueInfoProto:
    if array is None:
        return onnx.ValueInfoProto(name=name)
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
    )


def _quiet() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return options


def _useful(array: np.ndarray) -> bool:
    if not 0 < array.size <= MOST_ELEMENTS:
        return False
    if array.dtype == np.float32:
        # Of what cancelled to nothing, only rounding is left to compare.
        return bool(np.isfinite(array).all()) and SMALLEST < float(np.abs(array).max()) < LARGEST
    return True


def _is_map(array: np.ndarray) -> bool:
    return array.ndim >= 3 and array.dtype == np.float32


def as_it_is_fed(shape: tuple[int, ...]) -> np.ndarray:
    """What `random_inputs` will feed: what is of use here is of use in the comparison."""
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "fed", [x], [y])
    opsets = [helper.make_opsetid("", OPSETS.start)]
    return random_inputs(load_graph(helper.make_model(graph, opset_imports=opsets)))["x"]


@st.composite
def random_graphs(
    draw: Draw,
    proposals: dict[str, Proposal],
    most: int = 10,
    opsets: st.SearchStrategy[int] = ANY_OPSET,
) -> onnx.ModelProto:
    """Chains with branches, residuals and concats, odd sizes down to 1, opset 7 to 23. The model's
    `doc_string` names the proposals that it is made of.
    """
    drawing = Drawing(draw(opsets), np.random.default_rng(draw(st.integers(0, 2**16))))
    size = draw(st.tuples(st.integers(1, 24), st.integers(1, 24)))
    channels = draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    shape = (1, channels, *size) if draw(st.integers(0, 9)) else (1, channels, size[0])
    drawing.values["x"] = as_it_is_fed(shape)
    made = ["x"]
    for _ in range(draw(st.integers(1, most))):
        # Mostly on from the latest tensor, at times from an older one: branches.
        maps = [each for each in made if _is_map(drawing.values[each])]
        source = maps[-1] if draw(st.integers(0, 3)) else draw(st.sampled_from(maps))
        name = draw(st.sampled_from(sorted(proposals)))
        found = drawing.add(proposals[name](draw, drawing, source))
        if found:
            drawing.proposals.append(name)
            made += found
    read = {name for node in drawing.nodes for name in node.input}
    outputs = [name for name in made[1:] if name not in read or draw(st.integers(0, 9)) == 0]
    if not outputs:
        drawing.nodes.append(helper.make_node("Identity", ["x"], ["only"], name="only"))
        drawing.values["only"] = drawing.values["x"]
        outputs = ["only"]
    return drawing.model(outputs)
