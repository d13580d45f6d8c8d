"""`imbrex bench` and `imbrex infer` with a chosen plan, on a live cluster."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from coordinator.answers import PlanChoice, PlanNow
from coordinator.planning.plan_json import PlanFile
from coordinator.serving.v1.answers import Moved, Origin, TimingMs
from imbrex.calls import Outputs, plain
from imbrex.cli.rounds import WARM_UP, PlanSamples, Rounds
from tests.cli.run_cli import refused
from tests.commands.conftest import Live

NOWHERE = "http://127.0.0.1:9"


def test_strategies_in_turns(live: Live, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(plain(live.client.plan("tiny", PlanChoice("lw")))))
    arguments = ("bench", live.file, "--strategies", "single,lw", "--devices", "1..2")
    ran = live.ask(*arguments, "--repeat", 3, "--plan", plan, "--json")
    assert ran.code == 0, ran.err
    found = ran.json()
    cases = [(each["strategy"], each["devices"]) for each in found["results"]]
    assert cases == [("single", 1), ("lw", 1), ("single", 2), ("lw", 2), ("plan.json", 2)]
    assert found["reference"] == "single on 1"
    for each in found["results"]:
        assert len(each["samples_s"]) == 3
        assert each["max_rel_error"] <= 1e-5
        assert each["bytes"] == each["planned_bytes"]
        assert each["latency_s"] > 0
        assert each["predicted_latency_s"] > 0
    assert {device["name"] for device in found["devices"]} == {"worker-1", "worker-2"}
    assert all(len(device["fingerprint"]) == 16 for device in found["devices"])
    assert {"commit", "versions", "command"} <= set(found["provenance"])
    assert found["seed"] == 0
    assert len(found["baseline"]["samples_s"]) == 3
    for each in (found["baseline"], *found["results"]):
        # Quartiles are rounded to microseconds, samples are not.
        assert min(each["samples_s"]) - 1e-6 <= each["quartile_1_s"] <= each["quartile_3_s"]
        assert each["quartile_3_s"] <= max(each["samples_s"]) + 1e-6


def test_samples_as_csv_and_a_table(live: Live) -> None:
    arguments = ("bench", live.file, "--strategies", "lw,efl", "--repeat", 2)
    rows = list(csv.DictReader(live.ask(*arguments, "--csv").out.splitlines()))
    assert [(row["round"], row["strategy"]) for row in rows] == [
        *(("0", "alone"), ("0", "lw"), ("0", "efl"), ("1", "alone"), ("1", "lw"), ("1", "efl"))
    ]
    assert float(rows[0]["latency_s"]) > 0
    people = live.ask(*arguments).out
    assert "\nefl" in people
    assert "\nalone" in people
    assert "25 %" in people
    assert "█" in people


def test_several_models_and_a_chart(live: Live, tmp_path: Path) -> None:
    chart = tmp_path / "speedup.svg"
    both = f"{live.file},{live.file}@64x64"
    ran = live.ask("bench", "--models", both, "--repeat", 1, "--json")
    assert ran.code == 0, ran.err
    assert [len(each["results"]) for each in ran.json()["models"]] == [1, 1]
    assert "no model" in live.refuses("bench", "--models", f"{live.file},vgg61")
    one = live.ask("bench", "--models", live.file, "--repeat", 1, "--devices", "1..2", "--json")
    assert one.json()["model"] == "tiny"
    drawn = live.ask("bench", live.file, "--repeat", 1, "--devices", "1..2", "--plot", chart)
    assert drawn.code == 0, drawn.err
    words = "".join(ElementTree.parse(chart).getroot().itertext())
    assert "auto, tiny, predicted: " in words


def test_options_that_exclude_each_other(live: Live, tmp_path: Path) -> None:
    assert "not both" in live.ask("bench", live.file, "--models", live.file).err
    assert "empty" in live.ask("bench", "--models", "a,,b").err
    assert "not an .svg" in live.ask("bench", live.file, "--plot", tmp_path / "a.png").err
    report = ("--report", tmp_path / "r.json", "--plot", tmp_path / "a.svg")
    assert "no plot" in live.ask("bench", *report).err
    nowhere = tmp_path / "missing" / "a.svg"
    assert str(nowhere) in live.refuses("bench", live.file, "--plot", nowhere)


class Turns:
    """A cluster whose second answer of `b` differs."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def plan(self, model: str, choice: PlanChoice) -> PlanFile:
        return PlanFile.model_construct(version=1, predicted_latency_s=0.1)

    def plan_now(self, model: str, choice: PlanChoice) -> PlanNow:
        return PlanNow(model=model, plan_version=1, predicted_latency_s=0.1, predicted_now_s=0.2)

    def outputs(
        self, model: str, body: bytes, kind: str, choice: PlanChoice, *, sparse: bool
    ) -> Outputs:
        assert not sparse
        self.asked.append(choice.strategy)
        wrong = choice.strategy == "b" and self.asked.count("b") == WARM_UP + 2
        timing = dict.fromkeys(("queue", "scatter", "compute", "gather"), 0.0)
        arrays = {"y": np.full(3, 1.5 if wrong else 1.0, np.float32)}
        origin = Origin(
            request_id="r",
            model=model,
            task="tensor",
            plan_version=1,
            timing_ms=TimingMs(total=9.0, decode=1.0, **timing),
            devices=[],
            bytes=Moved(scatter=0, gather=0, halo=0),
        )
        return Outputs(arrays, origin)


def test_rounds_are_interleaved_and_every_answer_is_compared() -> None:
    turns = Turns()
    rounds = Rounds(turns, "m", b"")  # type: ignore[arg-type]
    cases = [PlanSamples(name, 1, PlanChoice(name)) for name in "ab"]
    rounds.warm_up(cases, lambda what: None)
    del turns.asked[:]
    assert [case.label for case in rounds.measure(cases, 1)] == ["a", "b"]
    turns.asked[:] = ["b"] * (WARM_UP + 1)
    list(rounds.measure(cases, 1))
    assert turns.asked[-2:] == ["a", "b"]
    assert cases[0].comparison.max_rel_error == 0
    assert cases[1].comparison.max_rel_error == pytest.approx(0.5)
    assert cases[0].latency_s == 0.008
    assert cases[0].predicted_s == 0.2


def test_an_answer_that_is_as_right_as_the_first_does_not_differ() -> None:
    turns = Turns()
    other = {"y": np.full(3, 1.5, np.float32)}
    rounds = Rounds(turns, "m", b"", others=[other])  # type: ignore[arg-type]
    cases = [PlanSamples(name, 1, PlanChoice(name)) for name in "ab"]
    rounds.warm_up(cases, lambda what: None)
    turns.asked[:] = ["b"] * (WARM_UP + 1)
    list(rounds.measure(cases, 1))
    assert cases[1].comparison.max_rel_error == 0


def test_bench_refuses_unknown_strategies_devices_plans_and_models(
    live: Live, tmp_path: Path
) -> None:
    assert "aolf" in live.refuses("bench", live.file, "--strategies", "aolf")
    assert "aolf" in live.refuses("bench", live.file, "--strategies", "lw,aolf")
    assert "2 are ready" in live.refuses("bench", live.file, "--devices", "1..3")
    assert "no file" in live.refuses("bench", live.file, "--plan", tmp_path / "none.json")
    assert "no model" in live.refuses("bench", "vgg61")
    assert "--url" in refused("bench", "lenet5", "--url", NOWHERE).err
    nonsense = tmp_path / "plan.json"
    nonsense.write_text("nonsense")
    assert "not a plan" in live.refuses("bench", live.file, "--plan", nonsense)
    assert live.ask("status", "--json").json()["ready"]


def test_infer_by_a_choice(live: Live, tmp_path: Path) -> None:
    ask = ("infer", live.tensors, "--model", "tiny", "--json")
    usual = live.ask(*ask).json()
    lw = live.ask(*ask, "--strategy", "lw", "--devices", 2).json()
    assert len(lw["devices"]) == 2
    assert lw["plan_version"] != usual["plan_version"]
    file = tmp_path / "lw.json"
    file.write_text(json.dumps(plain(live.client.plan("tiny", PlanChoice("lw", 1)))))
    by_plan = live.ask(*ask, "--plan", file).json()
    assert len(by_plan["devices"]) == 1
    assert live.client.plan("tiny").strategy == "ofl"
    assert "aolf" in live.refuses(*ask[:-1], "--strategy", "aolf")
    assert "there are 2" in live.refuses(*ask[:-1], "--devices", 3)
    assert live.ask(*ask, "--plan", file, "--devices", 2).code == 2
