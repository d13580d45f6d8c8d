"""The operator table, by kind of operator."""

from models.operators.declaration import Kind, Operator, Piece
from models.operators.table import TABLE, operator, refusal, splits_along

__all__ = ["TABLE", "Kind", "Operator", "Piece", "operator", "refusal", "splits_along"]
