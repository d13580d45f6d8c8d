"""Networks with attention as quantisers write them in each form, and in half precision."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from models.onnx_file.importer import load_graph
from models.run.reference import random_inputs
from tests.models.attention import NETWORKS
from tests.models.model_files import halved

# What onnxruntime's quantiser does not take: an RMSNormalization.
UNQUANTISED = frozenset({"normalised"})
QUANTISED = tuple(name for name in NETWORKS if name not in UNQUANTISED)
FORMS = ("QDQ u8", "QDQ s8", "QOperator", "dynamic", "half")
_CALIBRATED_WITH = 3


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Iterator[Mapping[str, np.ndarray]]) -> None:
        self._feeds = feeds

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        return next(self._feeds, None)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the advice to preprocess the model."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@cache
def network_in(form: str, name: str) -> onnx.ModelProto:
    """One of the networks, in one of the forms."""
    model = NETWORKS[name]()
    return halved(model) if form == "half" else quantised(model, form)


def quantised(model: onnx.ModelProto, form: str, **more: object) -> onnx.ModelProto:
    """The model as onnxruntime quantises it."""
    graph = load_graph(model)
    feeds = (random_inputs(graph, seed) for seed in range(_CALIBRATED_WITH))
    with tempfile.TemporaryDirectory() as folder, _quietly():
        before, after = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(model, before)
        if form == "dynamic":
            quantize_dynamic(before, after, **more)
        else:
            quantize_static(
                before,
                after,
                _Reader(feeds),
                quant_format=QuantFormat.QOperator if form == "QOperator" else QuantFormat.QDQ,
                activation_type=QuantType.QInt8 if form == "QDQ s8" else QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                **more,
            )
        return onnx.load(after)
