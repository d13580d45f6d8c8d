"""Functions that a model defines for itself, written out where they are called."""

from __future__ import annotations

import onnx
import onnx.inliner

from protos.errors import BadRequest

_Key = tuple[str, str]
# Exporters write a module as a function, and modules hold modules.
_DEEPEST = 100


def without_functions(model: onnx.ModelProto, most: int) -> onnx.ModelProto:
    """The model with its own functions inlined; the model itself where it has none.

    Raises:
        BadRequest: a function calls itself, or there would be more than `most` nodes.
    """
    if not model.functions:
        return model
    count = _Written({(each.domain, each.name): each for each in model.functions})
    total = sum(count.of_call(node) for node in model.graph.node)
    if total > most:
        raise BadRequest(
            cause=f"the model has {total} nodes with its functions written out",
            cure=f"The most that can be planned are {most}: simplify the model first.",
        )
    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception as error:  # onnx raises bare C++ exceptions of several types
        raise BadRequest(
            cause=f"the model's functions cannot be written out ({str(error)[:300]})",
            cure="Export it without local functions.",
        ) from error


class _Written:
    """Nodes that calls become, each function counted once."""

    def __init__(self, functions: dict[_Key, onnx.FunctionProto]) -> None:
        self._functions = functions
        self._counts: dict[_Key, int] = {}
        self._within: list[_Key] = []

    def of_call(self, node: onnx.NodeProto) -> int:
        """What one node becomes: itself, unless it calls a function."""
        key = (node.domain, node.op_type)
        function = self._functions.get(key)
        if function is None:
            return 1 + sum(
                sum(map(self.of_call, inner.node))
                for attribute in node.attribute
                for inner in (attribute.g, *attribute.graphs)
            )
        if key in self._within or len(self._within) == _DEEPEST:
            raise BadRequest(
                cause=f"the model's function {key[1]!r} calls itself, or too many others",
                cure="Export it without local functions.",
            )
        if key not in self._counts:
            self._within.append(key)
            self._counts[key] = sum(map(self.of_call, function.node))
            self._within.pop()
        return self._counts[key]
