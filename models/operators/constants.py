"""Settings of a node that newer opsets moved from attributes to constant inputs."""

from typing import Any

import numpy as np

from models.graph.graph import Graph, Node


def constant_input(graph: Graph, node: Node, place: int) -> np.ndarray | None:
    """The value of an input; None if it is left out or computed."""
    if len(node.inputs) <= place or not node.inputs[place]:
        return None
    return graph.constants.get(node.inputs[place])


def setting(graph: Graph, node: Node, name: str, place: int) -> list[Any] | None:
    """A list that is the attribute `name` or the constant input at `place`; None: not given."""
    if name in node.attributes:
        return list(node.attributes[name])
    value = constant_input(graph, node, place)
    return None if value is None else list(value.reshape(-1).tolist())


def computed_settings(graph: Graph, node: Node, *places: int) -> str:
    """Why a node can't be declared if one of these inputs is not known before it runs."""
    for place in places:
        name = node.inputs[place] if len(node.inputs) > place else ""
        if name and name not in graph.constants:
            return f"{node.op} depends on {name!r}, which is computed"
    return ""


def first_only(node: Node, box: Any) -> tuple[Any, ...]:
    """Reads of a node of which only the first input is data."""
    return (box, *(None for _ in node.inputs[1:]))
