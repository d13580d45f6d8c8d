"""onnx's node models (`onnx.backend.test`): each is read as any file is, divided in tiles where
that is possible, run, and compared with onnxruntime on onnx's own inputs.

`exact`: equal to the last bit. `rounded`: within the tolerance of `imbrex check`. `random`: in two
runs onnxruntime differs from itself. `refused`: counted by reason, and by whether onnxruntime runs
it. `unrun`: loaded, but onnxruntime has no answer, or onnx's inputs another size than open ones
get. `wrong` and `crashed` are faults.
"""

from __future__ import annotations

import re
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test import loader

from benchmarks.report import command_line, emit
from models.catalogue import catalogue
from models.catalogue.loading import network_of
from models.check.check import Blocking, fused
from models.check.tolerance import tolerance
from models.cut.program import BlobSource
from models.cut.tiles import grid
from models.cut.units import Network
from models.run.reference import WholeModel
from models.run.run_tiles import TileRun
from protos.errors import BadRequest, ImbrexError

Arrays = Mapping[str, np.ndarray]
GRID = (2, 2)
_FILE = "node.onnx"
# From the best to the worst.
_WORDS = ("exact", "rounded", "wrong")
FAULTS = ("wrong", "crashed")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a model: a word of this module's, why, and whether onnxruntime runs it."""

    name: str
    word: str
    reason: str = ""
    runs: bool = True
    is_split: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints counts, and what is at fault; returns 1 if anything is."""
    parser = command_line(__doc__)
    parser.add_argument("--only", default="", metavar="PART", help="models with this in their name")
    chosen = parser.parse_args(arguments)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(chosen.only):
            outcomes.append(outcome_of(case, Path(folder)))
            if outcomes[-1].word in FAULTS:
                print(outcomes[-1].name, outcomes[-1].reason, file=sys.stderr, flush=True)
    result = summary(outcomes)
    emit(result, chosen, text_of(result))
    return int(any(result["counts"].get(word) for word in FAULTS))


@dataclass(frozen=True, slots=True)
class Case:
    """A model with its inputs; None where onnx gives what numpy or onnxruntime have no array of."""

    name: str
    model: onnx.ModelProto
    feeds: Arrays | None


def cases(part: str = "") -> Iterator[Case]:
    """onnx's models with this in their names: as they are, and with all inputs but the first as
    constants, as files have their weights and sizes.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = loader.load_model_tests(kind="node")
    for case in found:
        if part not in case.name or case.model is None or not case.data_sets:
            continue
        model, feeds = case.model, _feeds(case.model, case.data_sets[0][0])
        yield Case(case.name, model, feeds)
        if feeds is not None and len(feeds) > 1:
            first, *others = feeds
            fixed = onnx.ModelProto()
            fixed.CopyFrom(model)
            kept = [value for value in model.graph.input if value.name not in others]
            del fixed.graph.input[:]
            fixed.graph.input.extend(kept)
            for name in others:
                fixed.graph.initializer.append(numpy_helper.from_array(feeds[name], name))
            yield Case(f"{case.name}, constants", fixed, {first: feeds[first]})


def _feeds(model: onnx.ModelProto, given: Sequence[Any]) -> Arrays | None:
    if not all(isinstance(value, (np.ndarray, np.generic)) for value in given):
        return None
    names = (value.name for value in model.graph.input)
    return {name: np.asarray(value) for name, value in zip(names, given, strict=False)}


def outcome_of(case: Case, folder: Path) -> Outcome:
    """Loads, divides, runs and compares one case."""
    whole = whole_answer(case)
    path = folder / _FILE
    onnx.save(case.model, path)
    is_split = False
    try:
        network = network_of(catalogue.load(str(path)))
        is_split = any(unit.splits for unit in network.units)
        if case.feeds is None or whole is None or not _fits(network, case.feeds):
            return Outcome(case.name, "unrun", "", runs=False, is_split=is_split)
        answers = [_answer(network, case.feeds, blocking) for blocking in _blockings(network)]
    except ImbrexError as error:
        return Outcome(case.name, "refused", error.cause, runs=whole is not None)
    except Exception:  # that is what is looked for
        reason = traceback.format_exc(limit=-2)
        return Outcome(case.name, "crashed", reason, runs=whole is not None)
    most = tolerance(network.graph)
    word = max((_compared(answer, whole, most) for answer in answers), key=_WORDS.index)
    if word == "wrong" and _compared(whole_answer(case) or {}, whole, most) == "wrong":
        word = "random"
    return Outcome(case.name, word, is_split=is_split)


def _fits(network: Network, feeds: Arrays) -> bool:
    """Whether onnx's inputs have the size to which open ones are bound."""
    graph = network.graph
    return all(feeds[name].shape == graph.shape(name) for name in graph.inputs)


def whole_answer(case: Case) -> Arrays | None:
    """onnxruntime's answer; None if it has none that consists of tensors."""
    if case.feeds is None:
        return None
    try:
        answer = WholeModel(case.model, threads=1).run(case.feeds)
    except BadRequest:
        return None
    return answer if all(isinstance(value, np.ndarray) for value in answer.values()) else None


def _blockings(network: Network) -> Sequence[Blocking]:
    return ([(k, k + 1) for k in range(len(network.units))], fused(network))


def _answer(network: Network, feeds: Arrays, blocking: Blocking) -> Arrays:
    run = TileRun(network, BlobSource(), {name: feeds[name] for name in network.graph.inputs})
    for start, stop in blocking:
        run.block(start, stop, grid(network, start, stop, *GRID))
    return run.answer()


def _compared(answer: Arrays, whole: Arrays, most: float) -> str:
    found = "exact"
    for name, expected in whole.items():
        actual = answer.get(name)
        if actual is None or actual.shape != expected.shape or actual.dtype != expected.dtype:
            return "wrong"
        numbers = expected.dtype.kind in "fc"
        if np.array_equal(actual, expected, equal_nan=numbers):
            continue
        if not numbers:
            return "wrong"
        largest = np.max(np.abs(expected[np.isfinite(expected)], dtype=np.float64), initial=0.0)
        if not np.allclose(actual, expected, 0.0, most * float(largest), equal_nan=True):
            return "wrong"
        found = "rounded"
    return found


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Counts by word, of refusals by reason, and the names of what is at fault."""
    refused = [outcome for outcome in outcomes if outcome.word == "refused"]
    reasons = Counter((_general(outcome.reason), outcome.runs) for outcome in refused)
    examples = {(_general(outcome.reason), outcome.runs): outcome for outcome in refused[::-1]}
    return {
        "models": len(outcomes),
        "counts": dict(Counter(outcome.word for outcome in outcomes)),
        "split": sum(outcome.is_split for outcome in outcomes),
        "refusals": [
            {
                "reason": reason,
                "count": count,
                "onnxruntime_runs_it": runs,
                "example": examples[reason, runs].name,
            }
            for (reason, runs), count in reasons.most_common()
        ],
        "faults": [
            {"model": outcome.name, "what": outcome.word, "reason": outcome.reason}
            for outcome in outcomes
            if outcome.word in FAULTS
        ],
    }


def _general(reason: str) -> str:
    """A reason without the names and numbers of one model."""
    return re.sub(r"\d+", "N", re.sub(rf"'[^']*'|\S*{_FILE}", "'...'", reason))


def text_of(result: Mapping[str, Any]) -> str:
    """For people."""
    counts = ", ".join(f"{count} {word}" for word, count in result["counts"].items())
    lines = [f"{result['models']} models: {counts}; {result['split']} with tiles"]
    for refusal in result["refusals"]:
        who = "" if refusal["onnxruntime_runs_it"] else " (onnxruntime does not run them either)"
        lines.append(
            f"{refusal['count']:5} refused{who}: {refusal['reason']} [{refusal['example']}]"
        )
    lines += [f"{fault['what'].upper()} {fault['model']}" for fault in result["faults"]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
