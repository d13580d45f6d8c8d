"""The demo's first screen: ten lines, and words where the cluster is slower."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from imbrex.demo.emulation.rate import Core
from imbrex.demo.likeness import told
from imbrex.demo.measurement import PlanRun
from imbrex.demo.outcome import DemoResult, show
from imbrex.demo.question import Question
from imbrex.demo.run import kept
from imbrex.kinds.presets import KINDS, load_kind
from models.check.agreement import Judgement, Reference
from models.run.reference import Comparison

LIKE = told("pi4", load_kind(KINDS["pi4"].preset), scale=0.25, core=Core(100.0, 1e-3))
SAME = Judgement()
QUESTION = Question(
    "digits", "digits", True, b"", "image/png", "sheet-1.png", Reference({}, None, 1e-5), {}, ()
)


def answer(total_ms, scatter_ms=8.0):
    phases = {"queue": 0.0, "decode": 4.0, "scatter": scatter_ms, "gather": 8.0}
    left = total_ms - sum(phases.values())
    return {"timing_ms": {**phases, "compute": left, "total": total_ms}}


def measured(alone_s, total_ms, predicted_s, judgement=SAME, scatter_ms=8.0):
    plan = {"predicted_latency_s": predicted_s, "wire": "exact"}
    first = {"predictions": [], **answer(total_ms)}
    baseline = {"latency_s": alone_s, "device": "worker-1"}
    return PlanRun(
        plan, first, first, [answer(total_ms, scatter_ms)] * 3, judgement, baseline, LIKE.scale
    )


def outcome(found):
    return DemoResult(
        QUESTION, [{"id": str(k), "name": f"worker-{k}"} for k in range(4)], found, LIKE
    )


def screen(shown, width=80):
    console = Console(file=io.StringIO(), width=width)
    show(shown, console, explain=False)
    return console.file.getvalue()


def test_times_are_those_of_the_devices():
    text = screen(outcome(measured(alone_s=0.464, total_ms=204.0, predicted_s=0.2)))
    assert "4 emulated Raspberry Pi 4s" in text
    assert "at 1/4 speed" in text
    assert "116 ms" in text
    assert "50.0 ms" in text
    assert "2.3 times as fast" in text
    assert "the same answer" in text
    assert len(text.splitlines()) == 10


@pytest.mark.parametrize("kind", [*KINDS, None])
@pytest.mark.parametrize("scale", [1 / 128, 1])
@pytest.mark.parametrize("alone_s", [80.0, 0.01])
@pytest.mark.parametrize("plan", [{"wire": "exact"}, {"wire": "fp16"}])
@pytest.mark.parametrize("judgement", [SAME, Judgement(Comparison(1.23456e-5, 1.23456e-5), 1.2)])
def test_the_first_screen_is_ten_lines_on_a_terminal(kind, scale, alone_s, plan, judgement):
    like = told(kind, load_kind(KINDS[kind].preset), scale, Core(100.0, 1e-3)) if kind else None
    found = measured(alone_s, 12345.0, 12.3456, judgement, scatter_ms=1234.0)
    found = replace(found, scale=like.scale if like else 1.0, plan={**found.plan, **plan})
    devices = [{"id": str(k), "name": f"worker-{k}"} for k in range(64)]
    text = screen(DemoResult(QUESTION, devices, found, like))
    assert len(text.splitlines()) == 10, text
    assert not like or like.kind.title in text


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


def test_differing_answer_is_not_called_the_same():
    wrong = Judgement(Comparison(1.0, 0.5), 5e4)
    text = screen(outcome(measured(0.4, 200.0, 0.2, wrong)))
    assert "A DIFFERENT ANSWER" in text
    assert "the same answer" not in text


def test_keep_says_why_times_on_the_page_are_longer():
    shown = list(kept("http://127.0.0.1:8460", QUESTION, LIKE))
    assert "4 times those above" in shown[0]
    for like in (None, replace(LIKE, scale=1.0)):
        assert list(kept("http://127.0.0.1:8460", QUESTION, like)) == shown[1:]


def test_a_curve_has_a_bar_for_each_number_of_devices():
    shown = replace(
        outcome(measured(0.4, 200.0, 0.2)), curve=[(1, 0.12), (2, 0.07), (3, 0.06), (4, 0.05)]
    )
    bars = [line for line in screen(shown).splitlines() if "█" in line]
    assert len(bars) == 5
    widths = [line.count("█") for line in bars]
    assert np.all(np.diff(widths[1:]) < 0)
