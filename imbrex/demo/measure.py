"""The demo's measurements on its running cluster."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imbrex.calls import plain
from imbrex.demo.cluster import DemoCluster, Progress
from imbrex.demo.question import Question
from models.quality import Picture, Truth, exactly_right
from models.reference import EQUAL, Comparison, compare
from protos.errors import Unavailable

WARM_REQUESTS = 7
# Devices are measured one at a time, each for a bounded time; an earlier plan would be based on
# estimates.
PROFILE_TIMEOUT_S = 300.0
# A plan that is replaced while requests are timed makes their median meaningless.
MOST_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """One plan's requests. `cold` is the very first answer, `first` the first under this plan,
    `answers` are the warm ones, without predictions, as their raw outputs are compared.
    """

    plan: Mapping[str, Any]
    cold: Mapping[str, Any]
    first: Mapping[str, Any]
    answers: Sequence[Mapping[str, Any]]
    comparison: Comparison
    baseline: Mapping[str, Any]

    @property
    def latency_s(self) -> float:
        """Median of the warm requests, from input tensor to output tensors like the baseline:
        decoding a picture takes equally long on one device.
        """
        return statistics.median(_tensors_ms(each["timing_ms"]) for each in self.answers) / 1000

    @property
    def speedup(self) -> float:
        """The speed-up against the best device running the whole model."""
        return float(self.baseline["latency_s"]) / self.latency_s

    @property
    def predictions(self) -> list[dict[str, Any]]:
        """The predictions; only name and shape of tensors."""
        return [
            {key: value for key, value in each.items() if key != "data"}
            for each in self.first["predictions"]
        ]

    def phase_ms(self, phase: str) -> float:
        """Median time of one phase over the warm requests."""
        return statistics.median(float(each["timing_ms"][phase]) for each in self.answers)


def _tensors_ms(timing: Mapping[str, float]) -> float:
    return timing["total"] - timing["decode"]


def measure(cluster: DemoCluster, question: Question, progress: Progress) -> Measured:
    """Sends requests until there are enough warm answers from one plan; compares every raw
    answer.
    """
    client, model = cluster.client, question.model
    progress("planning, sending weights, first request")
    cold: Mapping[str, Any] = {}
    for _ in range(MOST_ROUNDS):
        plan = plain(client.plan(model))
        first = plain(client.infer(model, question.body, question.media_type))
        cold = cold or first
        answers, comparison = [], EQUAL
        for number in range(1, WARM_REQUESTS + 1):
            progress(f"request {number} of {WARM_REQUESTS}")
            found = client.outputs(model, question.body, question.media_type)
            comparison = comparison.worse(compare(found.arrays, question.expected))
            answers.append(plain(found.origin))
        if {each["plan_version"] for each in (first, *answers)} == {plan["version"]}:
            break
    else:
        raise Unavailable(
            cause="the plan was replaced repeatedly while requests were timed",
            cure="Stop other programs that keep this machine busy, and try again",
        )
    progress("the whole model on the best device alone")
    baseline = plain(client.baseline(model))
    return Measured(plan, cold, first, answers, comparison, baseline)


def wait_until_profiled(cluster: DemoCluster, progress: Progress) -> None:
    """Waits until every device's speed is measured."""

    def profiled() -> bool:
        devices = cluster.client.devices()
        done = sum(each.profiled for each in devices)
        progress(f"{done} of {len(devices)} devices measured")
        return done == len(devices)

    cluster.wait(profiled, "not every device was measured", PROFILE_TIMEOUT_S)


def all_right(question: Question, predictions: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether exactly the objects in the picture were found; None if these are not known."""
    if question.truth is None:
        return None
    from models.vision.detection import Detection

    found = [
        Detection(str(each["label"]), int(each["index"]), float(each["score"]), tuple(each["box"]))
        for each in predictions
    ]
    return exactly_right([Picture(found, question.truth)]) == 1


def labels(truth: Sequence[Truth]) -> str:
    """The labels in order."""
    return " ".join(sorted(each.label for each in truth))
