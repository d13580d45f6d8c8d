"""A float network in eight bits, by onnxruntime's own quantiser: QDQ, weights per channel, unsigned
activations, whose bits are the same on every device.

Layers that lose most are left in float: the network is made again with each of the likeliest in
float (those that make its outputs, and the first), and the error of the outputs tells.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, TensorProto
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from models.run.reference import WholeModel
from models.tensors.arrays import Arrays
from protos.errors import BadRequest

Feeds = Arrays

HEAVY = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_QUANTISED = frozenset({"QuantizeLinear", "DequantizeLinear", "ConvInteger", "MatMulInteger"})
# A layer in float has to remove this share of the error.
WORTH = 0.1
# The error is that of so many pictures: making the network again takes longer than running it.
MOST_PICTURES = 4


class NotQuantised(BadRequest):
    """The network cannot be had in eight bits."""

    code = "not_quantised"


class Quantiser:
    """A network, calibrated with `feeds`; its files are in a `folder` of the caller's.

    Raises:
        NotQuantised: it has no layers that gain, is in eight bits already, or onnxruntime cannot
            calibrate it.
    """

    def __init__(self, model: ModelProto, feeds: Iterable[Feeds], folder: Path) -> None:
        _check(model)
        self._ranges, self._out = folder / "ranges.json", folder / "int8.onnx"
        self._model = _folded(model, folder)
        self._feeds = feeds
        # The quantiser tells nodes apart by their names.
        taken: set[str] = set()
        for number, node in enumerate(self._model.graph.node):
            if not node.name or node.name in taken:
                node.name = f"{node.op_type}_{number}"
            taken.add(node.name)
        self._named = folder / "named.onnx"
        onnx.save(self._model, self._named)
        self._tail = _tail(self._model)
        # The first network calibrates.
        self.made(())

    def made(self, in_float: Collection[str]) -> ModelProto:
        """The network in eight bits, but for the nodes named and what only follows heavy ones."""
        try:
            with _quietly():
                quantize_static(
                    self._named,
                    self._out,
                    _Reader(self._feeds),
                    quant_format=QuantFormat.QDQ,
                    per_channel=True,
                    activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8,
                    nodes_to_exclude=[*self._tail, *in_float],
                    calibration_cache_path=self._ranges,
                )
        except Exception as error:
            raise NotQuantised(
                cause=f"onnxruntime's quantiser refuses the network: {_text(error)}",
                cure="Export it with fixed sizes and an opset of at least 13",
            ) from error
        return onnx.load(self._out)

    def likeliest(self) -> list[str]:
        """Heavy nodes in the order in which they are tried in float: those that make the outputs,
        the first, then the others.
        """
        heavy = [node.name for node in self._model.graph.node if node.op_type in HEAVY]
        last = [name for name in heavy if name in _last(self._model)]
        return list(dict.fromkeys([*last, heavy[0], *heavy]))


def sensitive(
    quantiser: Quantiser,
    whole: WholeModel,
    feeds: Iterable[Feeds],
    at_most_s: float,
    step: Callable[[float], None],
) -> list[str]:
    """The layers worth leaving in float, found in about `at_most_s` seconds; `step` gets the
    progress in [0, 1].
    """
    seen = list(islice(feeds, MOST_PICTURES))
    expected = [whole.run(picture) for picture in seen]

    def error(in_float: Collection[str]) -> float:
        run = WholeModel(quantiser.made(in_float), threads=0)
        return sum(
            _error(run.run(picture), right) for picture, right in zip(seen, expected, strict=True)
        )

    began_s = time.monotonic()
    base, kept = error(()), []
    names = quantiser.likeliest()
    for number, name in enumerate(names):
        spent = (time.monotonic() - began_s) / max(at_most_s, 1e-9)
        step(min(1.0, max(spent, number / len(names))))
        if spent >= 1:
            break
        if base and error((name,)) < base * (1 - WORTH):
            kept.append(name)
    return kept


def _error(actual: Feeds, expected: Feeds) -> float:
    """The root mean square of each channel's error, in multiples of the channel's deviation:
    outputs hold coordinates beside scores.
    """
    found = []
    for name, right in expected.items():
        axes = tuple(axis for axis in range(right.ndim) if axis != 1)
        wrong = (actual[name].astype(np.float64) - right) ** 2
        found.append(np.sqrt(wrong.mean(axes)) / (right.std(axes) + 1e-6))
    return float(np.mean([error.mean() for error in found]))


def _check(model: ModelProto) -> None:
    kinds = {node.op_type for node in model.graph.node}
    if kinds & _QUANTISED or any(kind.startswith("QLinear") for kind in kinds):
        raise NotQuantised(
            cause="the network is quantised already", cure="Give the float network it was made of"
        )
    inputs = {value.type.tensor_type.elem_type for value in model.graph.input}
    if TensorProto.FLOAT16 in inputs:
        raise NotQuantised(
            cause="the network takes half precision", cure="Give its export in float32"
        )
    if not kinds & HEAVY:
        raise NotQuantised(
            cause="the network has no convolutions and no products of matrices",
            cure="It would not be faster in eight bits",
        )


def _folded(model: ModelProto, where: Path) -> ModelProto:
    """The network with its normalisations folded into convolutions, by onnxruntime."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(where / "folded.onnx")
    options.log_severity_level = 3
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)
    except Exception as error:
        raise NotQuantised(
            cause=f"onnxruntime cannot prepare the network: {_text(error)}",
            cure="See whether the disk is full; `imbrex models show` says whether it can be run",
        ) from error


def _tail(model: ModelProto) -> list[str]:
    """Light nodes that no heavy one follows: a head's boxes and scores, of different magnitudes."""
    leads = _leading_to_heavy(model)
    return [
        node.name
        for node in model.graph.node
        if node.op_type not in HEAVY and not leads.intersection(node.output)
    ]


def _last(model: ModelProto) -> set[str]:
    """Heavy nodes that no other heavy one follows."""
    leads = _leading_to_heavy(model)
    return {
        node.name
        for node in model.graph.node
        if node.op_type in HEAVY and not leads.intersection(node.output)
    }


def _leading_to_heavy(model: ModelProto) -> set[str]:
    """Tensors that a heavy node depends on."""
    found: set[str] = set()
    for node in reversed(model.graph.node):
        if node.op_type in HEAVY or found.intersection(node.output):
            found.update(node.input)
    return found


class _Reader(CalibrationDataReader):  # type: ignore[misc, unused-ignore]
    """Hands the inputs to the calibration."""

    def __init__(self, feeds: Iterable[Feeds]) -> None:
        self._left: Iterator[Feeds] = iter(feeds)

    def get_next(self) -> Feeds | None:
        """The next inputs; None at the end."""
        return next(self._left, None)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the quantiser's advice to its developers."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _text(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
