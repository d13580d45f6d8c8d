"""The demo's first screen: ten lines, and words where the cluster is slower."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from imbrex.demo.emulation.presets import load_kind
from imbrex.demo.likeness import KINDS, told
from imbrex.demo.measure import Measured
from imbrex.demo.question import Question
from imbrex.demo.report import Outcome, show
from models.reference import EQUAL, Comparison

LIKE = told("pi4", load_kind(KINDS["pi4"].preset).preset, scale=0.25, core=100.0)
QUESTION = Question("digits", "digits", True, b"", "image/png", "sheet-1.png", {}, 1e-5)


def answer(total_ms, scatter_ms=8.0):
    phases = {"queue": 0.0, "decode": 4.0, "scatter": scatter_ms, "gather": 8.0}
    left = total_ms - sum(phases.values())
    return {"timing_ms": {**phases, "compute": left, "total": total_ms}}


def measured(alone_s, total_ms, predicted_s, comparison=EQUAL):
    plan = {"predicted_latency_s": predicted_s, "wire": "exact"}
    first = {"predictions": [], **answer(total_ms)}
    baseline = {"latency_s": alone_s, "device": "worker-1"}
    return Measured(plan, first, first, [answer(total_ms)] * 3, comparison, baseline, LIKE.scale)


def outcome(found):
    return Outcome(QUESTION, [{"id": str(k), "name": f"worker-{k}"} for k in range(4)], found, LIKE)


def screen(shown):
    console = Console(file=io.StringIO(), width=160)
    show(shown, console, explain=False)
    return console.file.getvalue()


def test_times_are_those_of_the_devices():
    text = screen(outcome(measured(alone_s=0.464, total_ms=204.0, predicted_s=0.2)))
    assert "4 emulated Raspberry Pi 4s" in text
    assert "4 times slower" in text
    assert "116 ms" in text
    assert "50.0 ms" in text
    assert "2.3 times as fast" in text
    assert "the same answer" in text
    assert len(text.splitlines()) == 10


@pytest.mark.parametrize(
    ("alone_s", "total_ms", "predicted_s", "words"),
    [
        (0.1, 108.0, 0.1, "saves"),
        (0.1, 320.0, 0.3, "too small"),
        (0.1, 320.0, 0.1, "busy"),
    ],
)
def test_a_slower_cluster_is_said_in_words_with_the_reason(alone_s, total_ms, predicted_s, words):
    text = screen(outcome(measured(alone_s, total_ms, predicted_s)))
    assert "slower than one alone" in text
    assert words in text


def test_another_answer_is_not_called_the_same():
    wrong = Comparison(1.0, 0.5)
    text = screen(outcome(measured(0.4, 200.0, 0.2, wrong)))
    assert "A DIFFERENT ANSWER" in text
    assert "the same answer" not in text


def test_a_curve_has_a_bar_for_each_number_of_devices():
    shown = replace(
        outcome(measured(0.4, 200.0, 0.2)), curve=[(1, 0.12), (2, 0.07), (3, 0.06), (4, 0.05)]
    )
    bars = [line for line in screen(shown).splitlines() if "█" in line]
    assert len(bars) == 5
    widths = [line.count("█") for line in bars]
    assert np.all(np.diff(widths[1:]) < 0)
