"""Cutting: the program that computes one tile of a block.

The program's graph is the block's nodes with explicit pads (the border class of the tile), a
crop wherever a node reads less than what was computed, and constants sliced to what the tile
needs, so that a device which computes some channels holds only their weights.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from models.cut.program import BlobSource, Program, WeightRef, write_file
from models.graph.graph import ROWS, Graph, Node
from models.operators import BoxPiece, operator
from models.operators.declaration import Emitter
from models.operators.geometry import Extent, extent
from models.tensors.boxes import Box
from models.tensors.precision import write_precision
from models.tensors.wire import RUNTIME, Coded, Pixels, Quantised

# Constants below this many bytes travel inside the graph.
_INLINE_BYTES = 1024
_TO_THE_END = np.iinfo(np.int64).max
_PRODUCER = "imbrex"


@dataclass(frozen=True, slots=True, eq=False)
class CutTile:
    """A program and its geometry: the box of every input it reads and output it yields."""

    program: Program
    inputs: Mapping[str, Box]
    yields: Mapping[str, Box]


def cut(
    graph: Graph,
    nodes: Sequence[Node],
    demand: Mapping[str, Box],
    blobs: BlobSource,
    *,
    static: bool = False,
) -> CutTile:
    """The program for one tile.

    `demand` names the boxes that the tile must yield; the program may yield more of a tensor
    that other nodes of the block read too (`CutTile.yields`). Rows and columns are symbolic
    unless `static`, so tiles of the same border class share one program.
    """
    reach = extent(graph, nodes, demand)
    builder = TileBuilder(graph, reach, blobs, demand, static=static)
    builder.is_whole = len(nodes) == len(graph.nodes) and all(
        demand.get(name) == Box.whole(graph.shape(name)) for name in graph.results
    )
    for position, node in enumerate(nodes):
        if node.outputs[0] in reach.computed:
            builder.add(position, node)
    yields = {name: reach.computed[name] for name in demand}
    return CutTile(builder.program(), dict(reach.inputs), yields)


class TileBuilder(Emitter):
    """Collects the nodes, constants and crops of the program that yields `outputs`. `is_whole`:
    they are all that the network yields.
    """

    def __init__(
        self,
        graph: Graph,
        reach: Extent,
        blobs: BlobSource,
        outputs: Iterable[str],
        *,
        static: bool,
    ) -> None:
        super().__init__(graph.opset)
        self.graph = graph
        self.reach = reach
        self.blobs = blobs
        # The shape inference of opset 10 lets a Slice keep the names of sizes that it changes.
        self.static = static or graph.opset == 10
        self.inline: dict[str, np.ndarray] = {}
        self.weights: list[WeightRef] = []
        self._constants: dict[tuple[str, Box], str] = {}
        self._crops: dict[tuple[str, Box], str] = {}
        # Tensors that are added to each other, as the network and as the program's nodes name them.
        self._added: list[dict[str, tuple[str, Box]]] = []
        self.is_whole = False
        self._outputs = tuple(outputs)
        # Encoded tensors, under the names that the program's own nodes use for them.
        self._plain: dict[str, str] = {
            name: f"{name}__plain" for name in self._outputs if graph.tensors[name].wire
        }

    def add(self, position: int, node: Node) -> None:
        """Appends a node, with its constants sliced and its other inputs cropped."""
        names = []
        for name, box in zip(node.inputs, self.reach.reads[position], strict=False):
            if not name or box is None:
                names.append("")
            elif name in self.graph.constants:
                names.append(self._constant(name, box))
            else:
                names.append(self._cropped(name, box))
        box = self.reach.computed[node.outputs[0]]
        if node.op == "Add":
            self._note_equal(node, self.reach.reads[position], names)
        piece = BoxPiece(self.graph, node, box, self.reach.reads[position], tuple(names))
        operator(node).build(piece, self)

    def copy(self, node: Node, inputs: Sequence[str] | None = None) -> None:
        """Appends a node as it is, or with other inputs."""
        proto = NodeProto()
        proto.CopyFrom(node.proto)
        proto.input[:] = [self.source(name) for name in inputs or node.inputs]
        self.nodes.append(proto)

    def source(self, name: str) -> str:
        """The name that nodes read for a tensor: its decoded form, if it arrives encoded."""
        if name not in self._plain and name in self.reach.inputs:
            encoding = self.graph.tensors[name].wire
            if encoding is not None:
                self._plain[name] = f"{name}__plain"
                self.nodes += encoding.decode(self._coded(name, self.reach.inputs[name]))
        return self._plain.get(name, name)

    def _coded(self, name: str, box: Box) -> Coded:
        return Coded(self._plain[name], name, box, self.constant)

    def constant(self, label: str, array: np.ndarray) -> str:
        """Adds a constant that is not the network's: inside the graph if it is small, else by
        content.
        """
        if array.nbytes < _INLINE_BYTES:
            self.inline[label] = array
        else:
            self._refer(label, self.blobs.add(array), array.dtype, array.shape)
        return label

    def box_of(
        self,
        name: str,
        box: Box,
        *,
        label: str = "",
        shape: Sequence[int] | None = None,
        dims: Sequence[int] | None = None,
    ) -> str:
        """Adds a box of one of the network's constants under the name `label` (default: its own
        name). If `shape` is given, the constant is reshaped to it and `box` refers to that shape;
        `dims` is the shape of the box in the program.
        """
        whole = self.graph.constants[name]
        view = (whole if shape is None else whole.reshape(shape))[box.slices()]
        label, dims = label or name, tuple(dims or view.shape)
        if view.nbytes < _INLINE_BYTES:
            self.inline[label] = view.reshape(dims)
        else:
            self._refer(label, self.blobs.add_box(whole, box, shape), whole.dtype, dims)
        return label

    def _refer(self, label: str, sha256: str, dtype: np.dtype[Any], dims: tuple[int, ...]) -> None:
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        self.weights.append(WeightRef(label, sha256, kind, dims))

    def _constant(self, name: str, box: Box) -> str:
        key = (name, box)
        if key not in self._constants:
            used = any(other == name for other, _ in self._constants)
            label = f"{name}__part{len(self._constants)}" if used else name
            self._constants[key] = self.box_of(name, box, label=label)
        return self._constants[key]

    def _cropped(self, name: str, box: Box) -> str:
        have = self.reach.computed[name] if name in self.reach.computed else self.reach.inputs[name]
        if have == box:
            return self.source(name)
        key = (name, box)
        if key not in self._crops:
            self._crops[key] = self.crop(name, have, box)
        return self._crops[key]

    def crop(self, name: str, have: Box, want: Box) -> str:
        """A Slice counted from both ends, so that it does not depend on the tile's size."""
        source = self.source(name)
        axes = [axis for axis in range(len(have)) if have[axis] != want[axis]]
        starts = [want[axis].start - have[axis].start for axis in axes]
        cut_off = [have[axis].stop - want[axis].stop for axis in axes]
        ends = [-count if count else _TO_THE_END for count in cut_off]
        output = f"{name}__crop{len(self._crops)}"
        if self.graph.opset < 10:
            node = helper.make_node(
                "Slice", [source], [output], name=output, starts=starts, ends=ends, axes=axes
            )
        else:
            parts = {"starts": starts, "ends": ends, "axes": axes}
            for part, values in parts.items():
                self.inline[f"{output}_{part}"] = np.array(values, dtype=np.int64)
            inputs = [source, *(f"{output}_{part}" for part in parts)]
            node = helper.make_node("Slice", inputs, [output], name=output)
        self.nodes.append(node)
        return output

    def _name_apart(self) -> None:
        """Gives every node a name of its own, as onnxruntime demands: ours are named after what
        they make, as nodes of the network may be.
        """
        names = {node.name for node in self.nodes}
        seen: set[str] = set()
        for index, node in enumerate(self.nodes):
            if node.name in seen:
                node.name = f"{node.name}__{index}"
                while node.name in names:
                    node.name += "_"
                names.add(node.name)
            if node.name:
                seen.add(node.name)

    def program(self) -> Program:
        """The collected program; it names weights without holding them."""
        # Nodes make and read the decoded forms of what is encoded.
        plain = {k: v for k, v in self._plain.items() if k in self.reach.computed}
        for node in self.nodes if plain else ():
            node.input[:] = [plain.get(name, name) for name in node.input]
            node.output[:] = [plain.get(name, name) for name in node.output]
        self._name_apart()
        for name in self._outputs:
            encoding = self.graph.tensors[name].wire
            if encoding is not None:
                assert not isinstance(encoding, Pixels | Quantised), "no node makes an input"
                self.nodes += encoding.encode(self._coded(name, self.reach.computed[name]))
        graph = helper.make_graph(
            self.nodes,
            "program",
            [self._value(name, box) for name, box in self.reach.inputs.items()],
            [self._value(name, self.reach.computed[name]) for name in self._outputs],
            [numpy_helper.from_array(array, name) for name, array in self.inline.items()],
            value_info=self._equal_values(),
        )
        # Workers refuse unknown domains, and models import some that they do not use.
        used = {"", "ai.onnx", *(node.domain for node in self.nodes)}
        opsets = {key: version for key, version in self.graph.opset_imports if key in used}
        if RUNTIME in used:
            opsets.setdefault(RUNTIME, 1)
        imports = [helper.make_opsetid(*entry) for entry in opsets.items()]
        model = helper.make_model(
            graph, opset_imports=imports, ir_version=8, producer_name=_PRODUCER
        )
        write_precision(model, self.graph.precision)
        if self.is_whole:
            write_file(model, self.graph.file)
        return Program(model.SerializeToString(deterministic=True), tuple(self.weights))

    def _note_equal(self, node: Node, reads: Sequence[Box | None], names: Sequence[str]) -> None:
        """Tensors of one size that are added. onnxruntime computes a convolution, an addition and
        what follows as one kernel, but only if it knows that the sizes are equal.
        """
        one, other = reads
        if one is None or one != other or not self.graph.constants.keys().isdisjoint(node.inputs):
            return
        told = {name: (of, one) for name, of in zip(names, node.inputs, strict=True)}
        for known in [known for known in self._added if not told.keys().isdisjoint(known)]:
            self._added.remove(known)
            told = known | told
        self._added.append(told)

    def _equal_values(self) -> list[onnx.ValueInfoProto]:
        """The shapes of tensors that are added, except those that the graph declares anyway."""
        declared = {*self.reach.inputs, *self._outputs}
        return [
            helper.make_tensor_value_info(
                name, self.graph.tensors[of].data_type, self._dims(of, box, self._label(name))
            )
            for equal in self._added
            for name, (of, box) in equal.items()
            if name not in declared and not self.graph.tensors[of].is_dynamic
        ]

    def _label(self, name: str) -> str:
        """What names the sizes of a tensor, which all tensors that are added to it share."""
        return next((min(equal) for equal in self._added if name in equal), name)

    def _value(self, name: str, box: Box) -> onnx.ValueInfoProto:
        info = self.graph.tensors[name].on_wire
        if info.is_dynamic:
            return helper.make_tensor_value_info(name, info.data_type, None)
        dims = self._dims(name, box, self._label(name))
        return helper.make_tensor_value_info(name, info.data_type or TensorProto.FLOAT, dims)

    def _dims(self, name: str, box: Box, label: str) -> list[int | str]:
        dims: list[int | str] = list(box.shape)
        first = self.graph.axis(name, ROWS)
        if not self.static and first is not None:
            dims[first:] = [f"{label}_d{axis}" for axis in range(first, len(dims))]
        return dims
