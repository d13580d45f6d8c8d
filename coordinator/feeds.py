"""The tensors that a request brings: what is accepted, and the tasks that take them as they come.

A picture's tensor travels as pixels. Who sends the model's own tensor instead is served by the
same plan with programs that take that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from weakref import WeakKeyDictionary

import numpy as np

from coordinator.execution.tasks import TaskGraph, compile_plan
from models.pixels import without_pixels
from models.units import Network, divide
from protos.errors import BadRequest


def check_feeds(network: Network, feeds: Mapping[str, np.ndarray]) -> None:
    """Raises BadRequest unless the tensors are just what the network takes."""
    graph = network.graph
    if set(feeds) != set(graph.inputs):
        raise BadRequest(
            cause=f"the model takes the tensors {sorted(graph.inputs)}, not {sorted(feeds)}",
            cure="Name each input tensor once.",
        )
    for name, array in feeds.items():
        info = graph.tensors[name]
        if array.shape != info.shape or array.dtype not in (info.dtype, info.on_wire.dtype):
            raise BadRequest(
                cause=f"{name!r} is {array.dtype} {array.shape}, "
                f"the model takes {info.dtype} {info.shape}",
                cure="Convert the tensor.",
            )


class Entrances:
    """The tasks of a plan for tensors that don't come as the plan has them travel."""

    def __init__(self) -> None:
        self._plain: WeakKeyDictionary[TaskGraph, TaskGraph] = WeakKeyDictionary()

    async def fitting(
        self, graph: TaskGraph, network: Network, feeds: Mapping[str, np.ndarray]
    ) -> TaskGraph:
        """`graph`, or its like that takes the model's own tensors. Its other programs reach the
        devices with the first request.
        """
        if all(array.dtype == graph.tensors[name].dtype for name, array in feeds.items()):
            return graph
        if graph not in self._plain:
            self._plain[graph] = await asyncio.to_thread(_plain, graph, network)
        return self._plain[graph]


def _plain(graph: TaskGraph, network: Network) -> TaskGraph:
    plain = divide(without_pixels(network.graph), network.ranges)
    return compile_plan(graph.plan, plain, graph.blobs)
