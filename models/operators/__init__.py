"""The operator table, by kind of operator."""

from models.operators.declaration import Kind, Operator, Piece
from models.operators.mixing import REDUCING
from models.operators.quantised import dequantises
from models.operators.table import TABLE, depends_on_constants, operator, refusal, splits_along

__all__ = [
    "REDUCING",
    "TABLE",
    "Kind",
    "Operator",
    "Piece",
    "depends_on_constants",
    "dequantises",
    "operator",
    "refusal",
    "splits_along",
]
