"""The work of nodes that run whole, found by running each of them alone, before anything is
planned.

What they do need not follow from their shapes (loops, suppressions, what only onnxruntime knows),
or takes longer than its FLOPs (recurrent layers, whose steps wait for each other). So each is timed
beside a convolution, on one core, and counts as the FLOPs of a convolution that takes as long. The
ratio of the shortest times depends little on the machine's load, and its rounding, to steps of
2^(1/4), hides most of the rest from plans.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from threading import Timer

import numpy as np
import onnxruntime as ort
from onnx import NodeProto

from models.cut.cutter import cut
from models.cut.program import BlobSource
from models.graph.graph import Graph, Node
from models.graph.soundness import nested
from models.onnx_file.builder import NetworkBuilder, square
from models.onnx_file.importer import load_graph
from models.operators import Kind, depends_on_constants, operator, whole_flop
from models.run.quantised_inputs import as_they_travel
from models.run.reference import ProgramRunner, random_inputs, seeded
from models.tensors.arrays import Arrays
from models.tensors.boxes import Box

# What reads, holds and makes fewer elements takes some microseconds: it counts one FLOP for each.
_LEAST_ELEMENTS = 4096
# A node that takes longer is run once, one that takes less as often as fits, but so often at most.
_ENOUGH_S, _RUNS = 0.05, 10
# Loops may never end, and what comes before them takes memory and time, on a Raspberry Pi, too.
_MOST_RUN_S = 10.0
_MOST_FLOP_BEFORE = 20e9
_MOST_BYTES_BEFORE = 256_000_000
# For all nodes of a network: those that are left are not timed.
_MOST_S = 20.0
_STEPS_PER_OCTAVE = 4
# The convolution: 3x3, 128 channels, a 28x14 map.
_CHANNELS, _HEIGHT, _WIDTH = 128, 28, 14
_FLOP = 2 * 9 * _CHANNELS**2 * _HEIGHT * _WIDTH
# Numbers of nodes that were timed: a home's networks have some dozens.
_MOST_KEPT = 1024
_KEPT: dict[bytes, int] = {}


def timed(graph: Graph) -> Graph:
    """The graph whose nodes that run whole know how long they take, if that can be found."""
    wanted = {node.outputs[0]: node for node in graph.nodes if _is_worth_timing(graph, node)}
    if not wanted:
        return graph
    flops = _measured(graph, wanted.values())
    nodes = (replace(node, timed_flop=flops.get(node.outputs[0], 0)) for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def of_unknown_work(graph: Graph) -> tuple[Node, ...]:
    """The nodes that run whole and for whose work there is neither a formula nor a time."""
    return tuple(
        node
        for node in graph.nodes
        if not node.timed_flop and _is_worth_timing(graph, node) and not whole_flop(graph, node)
    )


def _is_worth_timing(graph: Graph, node: Node) -> bool:
    if operator(node).kind is not Kind.OPAQUE or depends_on_constants(graph, node):
        return False
    if _depends_on_values(node):
        return True
    touched = {name for name in (*node.inputs, *node.outputs) if name}
    return sum(math.prod(graph.shape(name)) for name in touched) >= _LEAST_ELEMENTS


def _depends_on_values(node: Node) -> bool:
    """Whether its time does: the node has graphs inside, as loops, branches and tails have."""
    return any(nested(node.proto))


def _measured(graph: Graph, nodes: Iterable[Node]) -> dict[str, int]:
    """FLOPs of nodes by their first output: of nodes alone with noise, and where that does not do,
    of nodes with what the network makes of noise.
    """
    until_s = time.monotonic() + _MOST_S
    flops: dict[str, int] = {}
    late: list[Node] = []
    for node in nodes:
        key = _key(graph, node)
        if not _depends_on_values(node) and key not in _KEPT and time.monotonic() < until_s:
            if len(_KEPT) >= _MOST_KEPT:
                del _KEPT[next(iter(_KEPT))]
            _KEPT[key] = _flop_of(graph, node, _noise(graph, node))
        if flop := _KEPT.get(key, 0):
            flops[node.outputs[0]] = flop
        else:
            late.append(node)
    entering = _entering(graph, late) if late else None
    for node in late:
        if entering is not None and time.monotonic() < until_s:
            flops[node.outputs[0]] = _flop_of(graph, node, entering)
    return flops


def _key(graph: Graph, node: Node) -> bytes:
    """Equal for nodes that take the same time: those of equal layers of any network."""
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    del proto.input[:], proto.output[:]
    proto.name = proto.doc_string = ""
    infos = [
        (graph.shape(name), graph.tensors[name].data_type, name in graph.constants) if name else ()
        for name in (*node.inputs, *node.outputs)
    ]
    return proto.SerializeToString(deterministic=True) + repr(infos).encode()


def _noise(graph: Graph, node: Node) -> Arrays:
    """Inputs of one node. Integers are 0, which is in the range of any index."""
    rng = np.random.Generator(np.random.PCG64(0))
    feeds: dict[str, np.ndarray] = {}
    for name in node.inputs:
        if name and name not in graph.constants:
            info = graph.tensors[name].on_wire
            if np.issubdtype(info.dtype, np.floating):
                feeds[name] = seeded(rng, info.dtype, info.shape)
            else:
                feeds[name] = np.zeros(info.shape, info.dtype)
    return feeds


def _entering(graph: Graph, nodes: Sequence[Node]) -> Arrays | None:
    """What these nodes read when the network gets noise; None if it is too large to be run here,
    or fails.
    """
    feeds = as_they_travel(graph, random_inputs(graph))
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name in graph.producer)
    if not read:
        return feeds
    ahead = graph.nodes[: 1 + max(graph.producer[name] for name in read)]
    flop = sum(
        operator(node).flop(graph, node, Box.whole(graph.shape(node.outputs[0]))) for node in ahead
    )
    if flop > _MOST_FLOP_BEFORE or graph.constant_bytes > _MOST_BYTES_BEFORE:
        return None
    try:
        return {**feeds, **_Alone(graph, ahead, tuple(read), feeds, threads=0).run()}
    except Exception:  # onnxruntime has an exception type for each error code
        return None


def _flop_of(graph: Graph, node: Node, feeds: Arrays) -> int:
    """FLOPs of a convolution that takes as long as the node; 0 if it does not run."""
    outputs = tuple(name for name in node.outputs if name)
    try:
        node_s = _Alone(graph, [node], outputs, feeds, threads=1).shortest_s()
    except Exception:  # onnxruntime has an exception type for each error code
        return 0
    convolution, nothing = _yardsticks()
    nothing_s = nothing.shortest_s()
    ratio = (node_s - nothing_s) / max(convolution.shortest_s() - nothing_s, 1e-9)
    steps = round(_STEPS_PER_OCTAVE * math.log2(max(1.0, _FLOP * ratio)))
    return round(2 ** (steps / _STEPS_PER_OCTAVE))


class _Alone:
    """Nodes as a program of their own that yields `outputs`."""

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        outputs: Sequence[str],
        feeds: Arrays,
        *,
        threads: int,
    ) -> None:
        demand = {name: Box.whole(graph.shape(name)) for name in outputs}
        blobs = BlobSource()
        piece = cut(graph, nodes, demand, blobs, static=True)
        self._session = ProgramRunner(blobs, threads).session(piece.program)
        self._feeds = {name: feeds[name] for name in piece.inputs}
        self._outputs = list(outputs)

    def run(self) -> dict[str, np.ndarray]:
        """Its outputs. onnxruntime raises an exception if that takes too long."""
        with _limit() as options:
            results = self._session.run(self._outputs, self._feeds, options)
        return dict(zip(self._outputs, results, strict=True))

    def shortest_s(self) -> float:
        """The shortest time of several runs, or of one that is long enough."""
        times: list[float] = []
        with _limit() as options:
            while len(times) < _RUNS and sum(times) < _ENOUGH_S:
                began_s = time.perf_counter()
                self._session.run(self._outputs, self._feeds, options)
                times.append(time.perf_counter() - began_s)
        return min(times)


@contextmanager
def _limit() -> Iterator[ort.RunOptions]:
    """Options with which what is too slow ends in an exception."""
    options = ort.RunOptions()
    options.log_severity_level = 4
    alarm = Timer(_MOST_RUN_S, setattr, (options, "terminate", True))
    alarm.daemon = True
    alarm.start()
    try:
        yield options
    finally:
        alarm.cancel()


@cache
def _yardsticks() -> tuple[_Alone, _Alone]:
    """The convolution, and what takes as long as it takes to call onnxruntime."""
    net = NetworkBuilder("yardstick", seed=0)
    x = net.input("x", (1, _CHANNELS, _HEIGHT, _WIDTH))
    convolution = load_graph(net.model(x.conv("convolution", _CHANNELS, square(3))))
    net = NetworkBuilder("nothing", seed=0)
    nothing = load_graph(net.model(net.input("x", (1, 1, 1, 1)).relu()))
    return _whole(convolution), _whole(nothing)


def _whole(graph: Graph) -> _Alone:
    return _Alone(graph, graph.nodes, graph.outputs, random_inputs(graph), threads=1)
