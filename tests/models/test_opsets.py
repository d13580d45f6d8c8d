"""Every operator of the table in each of its definitions, opset 7 to 28: split equals whole."""

from __future__ import annotations

from functools import cache

import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from models.graph.graph import OPSETS
from models.onnx_file.importer import load_graph
from models.operators import TABLE
from tests.models.proposals import PROPOSALS
from tests.models.proposals.elementwise import (
    BITWISE,
    COMPARING,
    JUMPING,
    LOGICAL,
    POSITIVE,
    SMOOTH,
)
from tests.models.random_graphs import random_graphs
from tests.models.test_random_graphs import ELSEWHERE, split_error, tolerance

# Which proposals make an operator.
MAKERS = {
    "conv": "Conv",
    "conv transpose": "ConvTranspose",
    "pool": "MaxPool AveragePool LpPool",
    "activation": SMOOTH,
    "bent": "LeakyRelu Elu Celu HardSigmoid Selu Gelu",
    "jump": f"{JUMPING} ThresholdedRelu Shrink",
    "of positive": POSITIVE,
    "choice": f"{COMPARING} {LOGICAL} IsNaN IsInf Not Where",
    "bits": f"{BITWISE} Mod",
    "clip": "Clip",
    "prelu": "PRelu",
    "cast": "Cast CastLike",
    "batch norm": "BatchNormalization",
    "with a constant": "Add Sub Mul Div Min Max",
    "with another": "Sum Mean",
    "concat": "Concat",
    "slice": "Slice",
    "gather": "Gather",
    "tile": "Tile",
    "expand": "Expand",
    "pad": "Pad",
    "resize": "Resize Upsample",
    "depth and space": "DepthToSpace SpaceToDepth",
    "reshape": "Reshape",
    "transpose": "Transpose",
    "squeeze": "Squeeze Unsqueeze",
    "over channels": "Softmax LogSoftmax Hardmax LRN LpNormalization",
    "reduction": "ReduceMean ReduceMax ReduceMin ReduceSum ReduceProd ReduceL1 ReduceL2 "
    "ReduceSumSquare ReduceLogSum ReduceLogSumExp",
    "arg": "ArgMax ArgMin",
    "global pool": "GlobalAveragePool GlobalMaxPool GlobalLpPool",
    "product": "Gemm MatMul Flatten",
    "split": "Split",
    "statistics": "InstanceNormalization GroupNormalization MeanVarianceNormalization",
    "layer norm": "LayerNormalization RMSNormalization",
    "grid sample": "GridSample",
}
GRAPHS, TRIES = 4, 50
# What ONNX has no more, and what onnxruntime has no kernel for.
NOT_RUN = {10: {"Upsample"}, 22: {"GlobalLpPool"}}


@cache
def definitions() -> dict[str, frozenset[int]]:
    """The first opset of each definition of ONNX's operators, as far as it is one of ours."""
    found: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version < OPSETS.stop:
            found.setdefault(schema.name, set()).add(schema.since_version)
    return {
        name: frozenset(max(version, OPSETS.start) for version in versions)
        for name, versions in found.items()
    }


def cut_some(name: str, ops: frozenset[str], opset: int, number: int) -> set[str]:
    """Which of these operators were in graphs of a proposal that were cut, in this opset."""
    found: set[str] = set()

    @seed(number)
    @settings(
        max_examples=GRAPHS,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(random_graphs({name: PROPOSALS[name]}, most=2, opsets=st.just(opset)), st.data())
    def check(model: onnx.ModelProto, data: st.DataObject) -> None:
        ours = ops & {node.op_type for node in model.graph.node}
        if ours and not any(node.refusal for node in load_graph(model).nodes):
            assert split_error(data, model) <= tolerance(model)
            found.update(ours)

    check()
    return found


@pytest.mark.parametrize("opset", OPSETS)
def test_every_operator_in_each_of_its_definitions(opset: int) -> None:
    never: set[str] = set()
    for name, ops in MAKERS.items():
        new = {op for op in ops.split() if opset in definitions()[op]}
        left = frozenset(new - NOT_RUN.get(opset, set()))
        for number in range(TRIES):
            left -= cut_some(name, left, opset, number) if left else set()
        never |= left
    assert not never


def test_no_operator_is_left_out() -> None:
    ours = {op for op in TABLE if "." not in op} - ELSEWHERE
    assert ours <= {op for ops in MAKERS.values() for op in ops.split()}
