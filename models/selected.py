"""A graph that knows of which outputs its reader looks at some entries alone."""

from __future__ import annotations

from dataclasses import replace

from models.graph import Graph, results_of
from models.selection import Selections

# About 100 of YOLO's 8400 boxes pass its usual threshold in a street scene; nobody knows before the
# picture is seen.
EXPECTED_SHARE = 1 / 64


def with_selections(graph: Graph, selections: Selections) -> Graph:
    """The graph whose planners count that few bytes of selected outputs travel."""
    tensors = dict(graph.tensors)
    for name in results_of(selections, graph.joined):
        if name not in graph.consumers:
            tensors[name] = replace(tensors[name], read_share=EXPECTED_SHARE)
    return replace(graph, tensors=tensors)
