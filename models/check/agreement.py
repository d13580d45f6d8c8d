"""Whether a split answer agrees with the whole model's.

Every kind of value is judged by its own magnitude: a detector's output holds coordinates of up to
hundreds of pixels beside scores below 1, and no error of a score may hide behind a pixel.

onnxruntime does not always agree with itself: with other optimisations it adds in another order,
which an output that is a small difference of large numbers shows. By as much a true answer may
differ, too.

In a quantised network its optimisations fuse what is between Dequantize and Quantize, and a value
halfway between two steps is rounded to the other one. Both of its answers are right then, and far
apart, as steps are large: by so much no answer may differ. But each element has to agree with that
element of one of the two.

Some answers a network picks by rank, as non-maximum suppression picks boxes and a transformer its
queries. Where two scores are closer than rounding, either may come first, and all that follows
differs although both are right. So what enters each ranking is judged by itself, and what follows
is judged by what the whole model makes of the same scores.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from types import MappingProxyType

import numpy as np
import onnx
from onnx import ModelProto

from models.check.tolerance import is_quantised, most_allowed, rounding, step_of, tolerance
from models.graph.graph import Graph
from models.operators.tail import BODY
from models.run.reference import EQUAL, Comparison, WholeModel, compare
from models.tensors.arrays import Arrays

# Channels whose largest values are this much apart are different kinds of value.
_APART = 30.0
# In a channel: the largest of a few values is small by chance.
_LEAST_VALUES = 64
# Two samples of noise say only so much about a third.
NOISE_FACTOR = 4.0
# A split answer may be as far from the exact one as onnxruntime's, whose error is a sample, too.
EXACT_FACTOR = 2.0
# That onnxruntime is wrong by so much more is believed where the exact answer shows it.
EXACT_MOST = 10.0
# In a quantised network it is wrong by a step or two.
MOST_STEPS = 4.0
_RANKING = frozenset({"TopK", "ArgMax", "ArgMin", "NonMaxSuppression", "Hardmax", "Unique"})
# What the whole model itself makes of a tensor that it is given.
_OWN = "{}__own"


@dataclass(frozen=True, slots=True)
class ChannelRange:
    """Channels `start` to `stop` of an output, along `axis`: values of one kind."""

    output: str
    axis: int
    start: int
    stop: int

    def of(self, answer: Arrays) -> dict[str, np.ndarray]:
        """These values of an answer; none where its output is of another form."""
        if self.output not in answer:
            return {}
        array = np.atleast_1d(answer[self.output])
        if array.ndim <= self.axis or array.shape[self.axis] < self.stop:
            return {}
        part = (slice(None),) * self.axis + (slice(self.start, self.stop),)
        return {self.output: array[part]}

    def __str__(self) -> str:
        return f"{self.output!r}, channels {self.start} to {self.stop - 1}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """How far an answer is off. `excess`: the error of the worst kind as a share of what is
    allowed; it agrees up to 1. `worst` says which kind that is; None if nothing differs, or if not
    even the outputs' shapes agree.
    """

    comparison: Comparison = EQUAL
    excess: float = 0.0
    worst: ChannelRange | None = None

    def worse(self, other: "Judgement") -> "Judgement":
        """The errors of the worse of two, and the kind that exceeds more."""
        farther = max((self, other), key=lambda judgement: judgement.excess)
        return Judgement(self.comparison.worse(other.comparison), farther.excess, farther.worst)


class Reference:
    """The whole model's answer; `again`: the same of differently optimised kernels. `limit`: the
    tolerance, relative to a kind's largest magnitude. `either`: elements may agree with either
    answer, but with nothing else; otherwise the answers' difference is noise, which is allowed up
    to `most` of a kind's largest magnitude. `rounded`: by how much an output's values may differ at
    any magnitude.
    """

    def __init__(
        self,
        whole: Arrays,
        again: Arrays | None,
        limit: float,
        *,
        either: bool = False,
        most: float = inf,
        rounded: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._right = [whole, again] if again and either else [whole]
        self._kinds, self.limit = tuple(kinds(whole)), limit
        self._noise = {kind: _noise(kind, whole, again or {}) for kind in self._kinds}
        self._factor = 0.0 if either else NOISE_FACTOR
        self._most = max(most, limit)
        self._rounded = rounded

    @property
    def noise(self) -> float:
        """By how much onnxruntime differs from itself, relative to a kind's largest magnitude: the
        largest of all kinds.
        """
        return max(self._noise.values(), default=0.0)

    def allowed(self, kind: ChannelRange) -> float:
        """The largest error of a kind of value, relative to its largest magnitude."""
        return max(self.limit, min(self._most, self._factor * self._noise[kind]))

    @property
    def widest(self) -> float:
        """The largest error that is allowed of any kind of value."""
        return max(map(self.allowed, self._kinds), default=self.limit)

    def judge(self, answer: Arrays) -> Judgement:
        """How far an answer with all of the whole model's outputs is off."""
        right = nearest(answer, self._right)
        every = compare(answer, right)
        found = Judgement(every, 0.0 if isfinite(every.max_rel_error) else inf)
        for kind in self._kinds:
            error = compare(kind.of(answer), kind.of(right))
            excess = error.max_rel_error / self.allowed(kind)
            if error.max_abs_error <= self._rounded.get(kind.output, 0.0):
                excess = min(excess, 1.0)
            found = found.worse(Judgement(error, excess, kind))
        return found


def reference_of(model: ModelProto, graph: Graph, feeds: Arrays) -> Reference:
    """What onnxruntime answers with the whole model, with and without its optimisations."""
    return reference(both_answers(model, feeds), graph)


def reference(answers: tuple[Arrays, Arrays], graph: Graph) -> Reference:
    """Two right answers of onnxruntime's."""
    rounded = {name: rounding(graph, name) for name in graph.outputs}
    limit, most = tolerance(graph), most_allowed(graph)
    either = is_quantised(graph)
    return Reference(*answers, limit, either=either, most=most, rounded=rounded)


def in_double(
    exact: Arrays, answers: tuple[Arrays, Arrays], graph: Graph, answer: Arrays
) -> tuple[Judgement, float]:
    """How far an answer is off from the exact one, as a share of what onnxruntime's own are, where
    that is more than the tolerance; and the error that is allowed so.
    """
    limit, steps = tolerance(graph), MOST_STEPS * step_of(graph)
    most = steps or EXACT_MOST * most_allowed(graph)
    widest, every = limit, compare(_like(exact, answer), answer)
    found = Judgement(every, 0.0 if isfinite(every.max_rel_error) else inf)
    for kind in kinds(_like(exact, answers[0])):
        right = kind.of(_like(exact, answers[0]))
        own = max(compare(kind.of(answer), right).max_rel_error for answer in answers)
        allowed = max(limit, min(most, EXACT_FACTOR * own))
        error = compare(kind.of(answer), right)
        widest = max(widest, allowed)
        found = found.worse(Judgement(error, error.max_rel_error / allowed, kind))
    return found, widest


def _like(exact: Arrays, answer: Arrays) -> dict[str, np.ndarray]:
    """The exact answer in the types of another."""
    with np.errstate(all="ignore"):
        return {
            name: exact[name].astype(array.dtype) for name, array in answer.items() if name in exact
        }


def both_answers(model: ModelProto, feeds: Arrays, threads: int = 1) -> tuple[Arrays, Arrays]:
    """The whole model's, with onnxruntime's optimisations and without."""
    whole = WholeModel(model, threads).run(feeds)
    return whole, WholeModel(model, threads, optimised=False).run(feeds)


def nearest(answer: Arrays, right: Sequence[Arrays]) -> dict[str, np.ndarray]:
    """Of several right answers, each element of the one in which it is nearest to the answer's."""
    found = dict(right[0])
    for other in right[1:]:
        for name in found.keys() & other.keys() & answer.keys():
            first, second, given = found[name], other[name], answer[name]
            if first.shape == second.shape == given.shape:
                exact = given.astype(np.float64)
                closer = np.abs(exact - second) < np.abs(exact - first)
                found[name] = np.where(closer, second, first)
    return found


def _noise(kind: ChannelRange, whole: Arrays, again: Arrays) -> float:
    """By how much two answers of the whole model differ. What is not finite says nothing, and so
    allows nothing.
    """
    error = compare(kind.of(again), kind.of(whole)).max_rel_error if again else 0.0
    return error if isfinite(error) else 0.0


def kinds(whole: Arrays) -> Iterator[ChannelRange]:
    """The kinds of value of each output: neighbouring channels of similar magnitude. Channels are
    the second axis of maps, and the shorter one of lists of boxes, whichever way they lie; an
    output with few values for each is of one kind.
    """
    for name, array in whole.items():
        axis = 1 if array.ndim == 4 or (array.ndim == 3 and array.shape[1] <= array.shape[2]) else 2
        if array.ndim not in (3, 4) or array.size < _LEAST_VALUES * array.shape[axis]:
            yield ChannelRange(name, 0, 0, len(np.atleast_1d(array)))
            continue
        others = tuple(other for other in range(array.ndim) if other != axis)
        peaks = np.abs(array.astype(np.float64)).max(axis=others)
        start = 0
        for stop in range(1, len(peaks) + 1):
            # What is zero throughout may be anything.
            group = peaks[start : stop + 1][peaks[start : stop + 1] != 0]
            if stop == len(peaks) or (group.size and not group.max() <= _APART * group.min()):
                yield ChannelRange(name, axis, start, stop)
                start = stop


def entering(model: ModelProto, graph: Graph) -> tuple[str, ...]:
    """The tensors that enter a ranking, or a tail, of those that both the model and the graph
    make.
    """
    made = {name for node in model.graph.node for name in node.output}
    ranked = [node.input[0] for node in model.graph.node if node.op_type in _RANKING]
    for node in graph.nodes:
        ranked += node.inputs if BODY in node.attributes else ()
    known = made & graph.producer.keys() - graph.constants.keys()
    same = (name for name in dict.fromkeys(ranked) if name in known)
    return tuple(name for name in same if not graph.tensors[name].is_dynamic)


def given(model: ModelProto, graph: Graph, names: Sequence[str]) -> ModelProto:
    """The model with these tensors as further inputs, of which everything behind them is made; what
    it makes itself of each of them becomes an output, `NAME__own`, also of those that were one.
    """
    apart = ModelProto()
    apart.CopyFrom(model)
    own = {name: _OWN.format(name) for name in names}
    for node in apart.graph.node:
        node.output[:] = [own.get(name, name) for name in node.output]
    outputs = [value for value in apart.graph.output if value.name not in own]
    del apart.graph.output[:]
    apart.graph.output.extend(outputs)
    for name in names:
        info = graph.tensors[name]
        kind = onnx.helper.make_tensor_value_info(name, info.data_type, info.shape)
        apart.graph.input.append(kind)
        apart.graph.output.append(
            onnx.helper.make_tensor_value_info(own[name], info.data_type, info.shape)
        )
    kept = [value for value in apart.graph.value_info if value.name not in own]
    del apart.graph.value_info[:]
    apart.graph.value_info.extend(kept)
    return apart


def with_own(answer: Arrays, tensors: Arrays, names: Sequence[str]) -> dict[str, np.ndarray]:
    """An answer of `given`, from a split network's answer and tensors."""
    others = {name: array for name, array in answer.items() if name not in names}
    return others | {_OWN.format(name): tensors[name] for name in names}
