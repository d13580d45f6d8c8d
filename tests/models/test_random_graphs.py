"""Split equals whole for random graphs in random uneven grids; and a wrong declaration is seen."""

import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from models.check.check import TOLERANCE, fused
from models.cut.program import BlobSource
from models.cut.tiles import MapTile, map_size, weighted_spans
from models.cut.units import Network, divide
from models.onnx_file.importer import load_graph
from models.operators import TABLE
from models.run.reference import WholeModel, compare, random_inputs
from models.run.run_tiles import TileRun
from tests.models.faults import misread
from tests.models.proposals import PROPOSALS
from tests.models.random_graphs import random_graphs

WEIGHTS = st.lists(st.sampled_from([0.0, 0.2, 1.0, 1.0, 3.0]), min_size=1, max_size=4)


@st.composite
def uneven(draw: st.DrawFn, network: Network, start: int, stop: int) -> list[MapTile]:
    """A grid with tiles of any size, empty ones among them."""
    height, width = map_size(network, start, stop)
    rows, cols = draw(WEIGHTS), draw(WEIGHTS)
    return [
        MapTile(r, c)
        for r in weighted_spans(height, rows if any(rows) else [1.0])
        for c in weighted_spans(width, cols if any(cols) else [1.0])
    ]


def blockings(network: Network) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Every unit alone, as much as possible in one block, or anything between."""
    whole = list(fused(network))
    alone = [(i, i + 1) for i in range(len(network.units))]
    return st.sampled_from([whole, whole, alone])


def split_error(data: st.DataObject, model: onnx.ModelProto) -> float:
    """The worst relative error of the model cut at random."""
    network = divide(load_graph(model))
    feeds = random_inputs(network.graph)
    run = TileRun(network, BlobSource(), feeds)
    for start, stop in data.draw(blockings(network)):
        tiles = data.draw(uneven(network, start, stop))
        run.block(start, stop, tiles)
    return compare(run.answer(), WholeModel(model, threads=1).run(feeds)).max_rel_error


def tolerance(model: onnx.ModelProto) -> float:
    """Statistics over the map are combined in another order."""
    combined = ("Normalization", "Reduce", "GlobalAverage")
    return 1e-4 if any(op in n.op_type for n in model.graph.node for op in combined) else TOLERANCE


# Drawn by tests/models/int8.py and test_quantised.py; or what we make of some chains and of what
# onnxruntime has fused.
ELSEWHERE = {op for op in TABLE if "Linear" in op} | {
    *("ConvInteger", "MatMulInteger", "com.microsoft.QGemm", "imbrex.Arrange", "imbrex.Roll"),
    "SimplifiedLayerNormalization",
}


# So many are the same every time: what a rare one shows belongs to the long run.
FEW = 200


def check_graphs(count: int) -> tuple[set[str], set[str]]:
    """Checks so many graphs; the operators and the proposals that they were of."""
    seen: set[str] = set()
    made: set[str] = set()

    @settings(
        derandomize=count <= FEW,
        max_examples=count,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(random_graphs(PROPOSALS), st.data())
    def check(model: onnx.ModelProto, data: st.DataObject) -> None:
        seen.update(f"{node.domain}.{node.op_type}".lstrip(".") for node in model.graph.node)
        made.update(model.doc_string.split(","))
        error = split_error(data, model)
        if error > tolerance(model):
            note(onnx.printer.to_text(model))
        assert error <= tolerance(model)

    check()
    return seen, made


def test_a_hundred_graphs() -> None:
    operators, _ = check_graphs(100)
    assert len(operators) > 50


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_five_thousand_graphs(part: int) -> None:
    operators, made = check_graphs(1000)
    assert len(operators) > 100
    assert PROPOSALS.keys() <= made


WRONG = {
    "Conv": "conv",
    "ConvTranspose": "conv transpose",
    "Pad": "pad",
    "MaxPool": "pool",
    "Resize": "resize",
}


# Its program addresses elements by their places in what it reads: it only runs on the right rows.
ADDRESSING = {"Resize"}


@pytest.mark.parametrize("op", WRONG)
def test_a_misread_row_is_noticed(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    misread(op, monkeypatch)
    noticed = 0

    @settings(derandomize=True, max_examples=40, database=None, phases=[Phase.generate])
    @given(random_graphs({WRONG[op]: PROPOSALS[WRONG[op]]}, most=3), st.data())
    def check(model: onnx.ModelProto, data: st.DataObject) -> None:
        nonlocal noticed
        if any(node.op_type == op for node in model.graph.node):
            try:
                noticed += split_error(data, model) > tolerance(model)
            except Exception:  # says nothing of the comparison
                noticed += op in ADDRESSING

    check()
    assert noticed
