"""The operator table, by kind of operator."""

from models.operators.declaration import BoxPiece, Kind, Operator
from models.operators.mixing import LAYER_NORMS, REDUCING
from models.operators.quantised import LINEAR, WIDENING, dequantises
from models.operators.table import (
    MOST_LINES_ASKED,
    TABLE,
    depends_on_constants,
    keeps_lines,
    lines_asked,
    moves,
    operator,
    refusal,
    splits_along,
    whole_flop,
)
from models.operators.whole_flop import is_sequential

__all__ = [
    "LAYER_NORMS",
    "LINEAR",
    "MOST_LINES_ASKED",
    "REDUCING",
    "TABLE",
    "WIDENING",
    "BoxPiece",
    "Kind",
    "Operator",
    "depends_on_constants",
    "dequantises",
    "is_sequential",
    "keeps_lines",
    "lines_asked",
    "moves",
    "operator",
    "refusal",
    "splits_along",
    "whole_flop",
]
