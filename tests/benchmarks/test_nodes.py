"""onnx's node models, read, divided and compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from benchmarks import nodes
from benchmarks.nodes import Case, cases, outcome_of, summary

FEW = "test_conv"


def test_a_few_models_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "nodes.json"
    assert nodes.main(["--only", FEW, "-o", str(file)]) == 0
    result = json.loads(file.read_text())
    assert result["models"] == sum(result["counts"].values()) > 10
    assert not result["faults"]
    assert result["split"] > 10
    assert "exact" in capsys.readouterr().out


def test_weights_are_also_tried_as_constants() -> None:
    plain, constant = [case for case in cases("test_conv_with_strides_padding")][:2]
    assert len(plain.model.graph.input) == 2
    assert [value.name for value in constant.model.graph.input] == ["x"]
    assert set(constant.feeds or ()) == {"x"}


def test_a_wrong_answer_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(cases("test_conv_with_strides_padding"))
    whole = nodes.whole_answer(case)
    assert whole is not None
    wrong = {name: array + 1 for name, array in whole.items()}
    monkeypatch.setattr(nodes, "_answer", lambda *_: wrong)
    outcome = outcome_of(case, tmp_path)
    assert outcome.word == "wrong"
    assert summary([outcome])["faults"] == [{"model": case.name, "what": "wrong", "reason": ""}]


def test_a_crash_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(nodes, "_answer", broken)
    outcome = outcome_of(next(cases("test_conv_with_strides_padding")), tmp_path)
    assert outcome.word == "crashed"
    assert "broken" in outcome.reason


def test_refusals_are_counted_by_their_reason(tmp_path: Path) -> None:
    kind = TensorProto.STRING
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "texts",
        [helper.make_tensor_value_info("x", kind, [2])],
        [helper.make_tensor_value_info("y", kind, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    case = Case("texts", model, {"x": np.array(["a", "b"], object)})
    outcome = outcome_of(case, tmp_path)
    elsewhere = replace(outcome, name="others", runs=False)
    refusal, other = summary([outcome, elsewhere, outcome])["refusals"]
    assert (other["count"], other["example"]) == (1, "others")
    assert (refusal["count"], refusal["example"]) == (2, "texts")
    assert refusal["onnxruntime_runs_it"]
    assert "no tensor of numbers" in refusal["reason"]
