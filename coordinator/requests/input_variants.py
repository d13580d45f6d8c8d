"""The input tensors of a request: validation, and tasks for tensors in another form.

A plan expects a picture as pixels. A client that sends the model's own tensor instead is served by
the same plan: if the tensor is made of pixels, they travel in its place, and the answer is the same
to the bit; else with programs that take that tensor. An input that the network quantises first
travels quantised, but is always sent as the model's own tensor: only the model knows its scale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from weakref import WeakKeyDictionary

from coordinator.tasks.task_graph import TaskGraph, compile_plan
from models.cut.units import Network, divide
from models.run.quantised_inputs import as_they_travel
from models.tensors.arrays import Arrays
from models.tensors.wire import Pixels, Quantised
from models.vision.pixels import as_pixels, is_decided_by_values, with_encodings
from protos.errors import BadRequest

FeedReader = Callable[[], Awaitable[Arrays]]


def check_feeds(network: Network, feeds: Arrays) -> None:
    """Raises BadRequest unless the tensors are exactly the network's inputs."""
    graph = network.graph
    if set(feeds) != set(graph.inputs):
        raise BadRequest(
            cause=f"the model takes the tensors {sorted(graph.inputs)}, not {sorted(feeds)}",
            cure=_cure(set(graph.inputs) - set(feeds), set(feeds) - set(graph.inputs)),
        )
    for name, array in feeds.items():
        info = graph.tensors[name]
        if array.shape != info.shape or array.dtype not in info.accepted:
            raise BadRequest(
                cause=f"{name!r} is {array.dtype} {array.shape}, "
                f"the model takes {info.dtype} {info.shape}",
                cure="Convert the tensor.",
            )


def _cure(missing: set[str], unknown: set[str]) -> str:
    """What to do about inputs that are missing, and tensors that are none."""
    orders = []
    if missing:
        orders.append(f"Send {', '.join(sorted(missing))}, too")
    if unknown:
        orders.append(f"Leave out {', '.join(sorted(unknown))}")
    return "; ".join(orders) + ": tensors travel as .npz, or by the Open Inference Protocol"


class InputVariants:
    """Variants of a plan's tasks for inputs that come in another form than the plan expects."""

    def __init__(self) -> None:
        self._variants: WeakKeyDictionary[TaskGraph, dict[_Encodings, TaskGraph]]
        self._variants = WeakKeyDictionary()

    async def fitting(
        self, graph: TaskGraph, network: Network, feeds: Arrays
    ) -> tuple[TaskGraph, Arrays]:
        """`graph` with its inputs taken from these tensors, or its variant for tensors that travel
        in another way. The variant's other programs reach the devices with the first request.
        """
        inputs = network.graph
        sent = feeds
        if any(isinstance(inputs.tensors[name].wire, Quantised) for name in feeds):
            sent = await asyncio.to_thread(as_they_travel, inputs, feeds)
        tensors = inputs.tensors
        if not any(is_decided_by_values(tensors[name], array) for name, array in sent.items()):
            return graph, sent
        sent, encodings = await asyncio.to_thread(as_pixels, inputs, sent)
        if not encodings:
            return graph, sent
        variants, key = self._variants.setdefault(graph, {}), tuple(sorted(encodings.items()))
        if key not in variants:
            variants[key] = await asyncio.to_thread(_variant, graph, network, encodings)
        return variants[key], sent


_Encodings = tuple[tuple[str, Pixels | None], ...]


def _variant(
    graph: TaskGraph, network: Network, encodings: Mapping[str, Pixels | None]
) -> TaskGraph:
    changed = divide(with_encodings(network.graph, encodings), network.ranges)
    return compile_plan(graph.plan, changed, graph.blobs)
