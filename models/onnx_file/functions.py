"""Inlining of a model's local functions."""

from collections.abc import Iterable
from dataclasses import dataclass

import onnx
import onnx.inliner
from onnx import ModelProto, NodeProto

from models.tensors.memory import megabytes
from protos.errors import BadRequest

_Key = tuple[str, str]
# Exporters write each module as a function, and modules are nested.
_DEEPEST = 100
# A constant in a function is copied for each call.
_MOST_BYTES = 64_000_000


def without_functions(model: ModelProto, most: int) -> ModelProto:
    """The model with its local functions inlined; the model itself if it has none.

    Raises:
        BadRequest: a function calls itself, or there would be more than `most` nodes.
    """
    if not model.functions:
        return model
    count = _Written({(each.domain, each.name): each for each in model.functions})
    total = count.of_all(model.graph.node)
    if total.nodes > most:
        raise BadRequest(
            cause=f"the model has {total.nodes} nodes with its functions inlined",
            cure=f"At most {most} nodes can be planned: simplify the model first.",
        )
    if total.size > _MOST_BYTES:
        raise BadRequest(
            cause=f"the model's functions take {megabytes(total.size)} when inlined",
            cure=f"The most is {megabytes(_MOST_BYTES)}: make their constants inputs.",
        )
    try:
        inlined = onnx.inliner.inline_local_functions(model, convert_version=True)
    except Exception as error:  # onnx raises bare C++ exceptions of several types
        raise BadRequest(
            cause=f"the model's functions cannot be inlined ({str(error)[:300]})",
            cure="Export it without local functions.",
        ) from error
    if inlined.functions:
        raise BadRequest(
            cause=f"the model's function {inlined.functions[0].name!r} cannot be inlined",
            cure="Export it without local functions, or with those of its own opset.",
        )
    return inlined


@dataclass(frozen=True, slots=True)
class _Size:
    """The size of inlined calls: nodes, and their bytes in the file's encoding."""

    nodes: int
    size: int


class _Written:
    """The size of calls; each function is measured once."""

    def __init__(self, functions: dict[_Key, onnx.FunctionProto]) -> None:
        self._functions = functions
        self._sizes: dict[_Key, _Size] = {}
        self._within: list[_Key] = []

    def of_all(self, nodes: Iterable[NodeProto]) -> _Size:
        """The size of several nodes."""
        found = [self._of_call(node) for node in nodes]
        return _Size(sum(each.nodes for each in found), sum(each.size for each in found))

    def _of_call(self, node: NodeProto) -> _Size:
        """The size of one node, with its function if it calls one."""
        key = (node.domain, node.op_type)
        function = self._functions.get(key)
        if function is None:
            inner = [
                self.of_all(graph.node)
                for attribute in node.attribute
                for graph in (attribute.g, *attribute.graphs)
            ]
            size = sum(each.size for each in inner) + (node.ByteSize() if self._within else 0)
            return _Size(1 + sum(each.nodes for each in inner), size)
        if key in self._within or len(self._within) == _DEEPEST:
            raise BadRequest(
                cause=f"the model's function {key[1]!r} calls itself, or is nested too deeply",
                cure="Export it without local functions.",
            )
        if key not in self._sizes:
            self._within.append(key)
            self._sizes[key] = self.of_all(function.node)
            self._within.pop()
        return self._sizes[key]
