"""Planted faults: declarations that misread a row, rewrites that leave out a step."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest

from models.graph.graph import ROWS, Graph, Node
from models.operators import TABLE
from models.rewrite import rules
from models.tensors.boxes import Box, Span


def misread(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator reads the rows beside those that it needs: as many, so that sizes fit and only
    the values tell. Where all rows become one, the last is forgotten.
    """
    declared = TABLE[op]

    def reads(graph: Graph, node: Node, box: Box) -> tuple[Box | None, ...]:
        right = list(declared.reads(graph, node, box))
        for k, (name, read) in enumerate(zip(node.inputs, right, strict=True)):
            axis = graph.axis(name, ROWS) if name and name not in graph.constants else None
            if read is not None and axis is not None and graph.shape(name)[axis] > 1:
                reduces = graph.size(node.outputs[0], ROWS) == 1
                wrong = _beside(read[axis], graph.shape(name)[axis], reduces)
                if wrong != read[axis]:
                    right[k] = read.replace(axis, wrong)
                    break
        return tuple(right)

    monkeypatch.setitem(TABLE, op, replace(declared, reads=reads))


def _beside(span: Span, size: int, reduces: bool) -> Span:
    if len(span) == size:
        return Span(0, size - 1) if reduces else span
    if span.stop < size:
        return Span(span.start + 1, span.stop + 1)
    return Span(span.start - 1, span.stop - 1)


def left_out(op: str, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator is written out without one of its steps."""
    right = rules.RULES[op]

    def wrong(draft: rules.Draft, node: onnx.NodeProto) -> bool:
        before = len(draft.nodes)
        applied = right(draft, node)
        (found, *_) = [each for each in draft.nodes[before:] if each.op_type == step]
        found.op_type, found.domain = "Identity", ""
        del found.input[1:], found.attribute[:]
        return applied

    monkeypatch.setitem(rules.RULES, op, wrong)
