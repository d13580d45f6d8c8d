"""The demo's measurements on its running cluster."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.answers import IN_FORCE, PlanChoice
from imbrex.calls import plain
from imbrex.client import Client
from imbrex.demo.demo_cluster import ClusterForm, DemoCluster
from imbrex.demo.progress import Progress
from imbrex.demo.question import Question
from models.check.agreement import Judgement
from models.run.reference import Comparison
from models.vision.quality import EvaluatedPicture, GroundTruth, exactly_right
from protos.errors import Unavailable

# Devices are measured one at a time, each for a bounded time.
PROFILE_TIMEOUT_S = 300.0
# A plan that is replaced while requests are timed makes their median meaningless.
MOST_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class PlanRun:
    """One plan's requests. `cold` is the very first answer, `first` the first under this plan,
    `answers` are the warm ones, without predictions, as their raw outputs are compared. Times of
    the cluster are multiplied by `scale`, so that they are those of the emulated devices.
    """

    plan: Mapping[str, Any]
    cold: Mapping[str, Any]
    first: Mapping[str, Any]
    answers: Sequence[Mapping[str, Any]]
    judgement: Judgement
    baseline: Mapping[str, Any]
    scale: float = 1.0

    @property
    def comparison(self) -> Comparison:
        """The largest errors of the raw answers."""
        return self.judgement.comparison

    @property
    def latency_s(self) -> float:
        """Median of the warm requests, from input tensor to output tensors like the baseline:
        decoding a picture takes equally long on one device.
        """
        return self.scale * _median_s(self.answers)

    @property
    def alone_s(self) -> float:
        """The whole model on the best device alone, without any message."""
        return self.scale * float(self.baseline["latency_s"])

    @property
    def predicted_s(self) -> float:
        """Predicted for the plan when it was made."""
        return self.scale * float(self.plan["predicted_latency_s"])

    @property
    def speedup(self) -> float:
        """The speed-up against the best device running the whole model."""
        return self.alone_s / self.latency_s

    @property
    def predictions(self) -> list[dict[str, Any]]:
        """The predictions; only name and shape of tensors."""
        return [
            {key: value for key, value in prediction.items() if key != "data"}
            for prediction in self.first["predictions"]
        ]

    def phase_ms(self, phase: str) -> float:
        """Median time of one phase over the warm requests."""
        return self.scale * statistics.median(
            float(answer["timing_ms"][phase]) for answer in self.answers
        )


def measure(
    cluster: DemoCluster, question: Question, progress: Progress, chosen: PlanChoice
) -> PlanRun:
    """Sends requests until there are enough warm answers from one plan; compares every raw answer.

    With `chosen`, that plan is made after requests under the plan in force have shown what messages
    and tasks cost.
    """
    client, model, requests = cluster.client, question.model, cluster.form.requests
    progress("planning, sending weights, first request")
    cold = plain(client.infer(model, question.body, question.media_type))
    for number in range(requests.learning if chosen != IN_FORCE else 0):
        progress(f"learning what messages cost: request {number + 1} of {requests.learning}")
        client.outputs(model, question.body, question.media_type)
    progress("planning for all devices")
    if chosen != IN_FORCE:
        cluster.wait(
            lambda: is_for_all(plain(client.plan(model, chosen)), cluster.form),
            "no plan was made for all workers",
            PROFILE_TIMEOUT_S,
        )
    for _ in range(MOST_ROUNDS):
        first = plain(client.infer(model, question.body, question.media_type, chosen))
        for _ in range(1, requests.first):
            client.outputs(model, question.body, question.media_type, chosen)
        plan = plain(client.plan(model, chosen))
        answers, judgement = [], Judgement()
        for number in range(1, requests.warm + 1):
            progress(f"request {number} of {requests.warm}")
            found = client.outputs(model, question.body, question.media_type, chosen)
            judgement = judgement.worse(question.whole.judge(found.arrays))
            answers.append(plain(found.origin))
        versions = {answer["plan_version"] for answer in (first, *answers)}
        if versions == {plan["version"]} and is_for_all(plan, cluster.form):
            break
    else:
        raise Unavailable(
            cause="the plan was replaced repeatedly while requests were timed",
            cure="Stop other programs that keep this machine busy, and try again",
        )
    progress("the whole model on one device alone")
    baseline = plain(client.baseline(model))
    like = cluster.form.like
    scale = like.scale if like else 1.0
    return PlanRun(plan, cold, first, answers, judgement, baseline, scale)


def curve(
    cluster: DemoCluster, question: Question, progress: Progress, measured: PlanRun
) -> list[tuple[int, float]]:
    """(devices, seconds) from one device behind the coordinator to all of them but one, and then
    what `measured` says of all.
    """
    client, model, requests = cluster.client, question.model, cluster.form.requests
    found = []
    for count in range(1, cluster.form.workers):
        progress(f"{count} of {cluster.form.workers} devices")
        chosen = PlanChoice(cluster.form.strategy, devices=count)
        answers = [
            plain(client.outputs(model, question.body, question.media_type, chosen).origin)
            for _ in range(requests.first + requests.warm)
        ]
        found.append((count, measured.scale * _median_s(answers[requests.first :])))
    return [*found, (cluster.form.workers, measured.latency_s)]


def wait_until_profiled(cluster: DemoCluster, progress: Progress) -> None:
    """Waits until every device's speed is measured.

    Raises:
        Unavailable: a device could not be measured.
    """
    cluster.wait(
        lambda: all_profiled(cluster.client, progress),
        "not every device was measured",
        PROFILE_TIMEOUT_S,
    )


def all_profiled(client: Client, progress: Progress) -> bool:
    """Whether every device's speed is measured.

    Raises:
        Unavailable: a device could not be measured, and none is waiting to be.
    """
    devices = client.devices()
    unmeasured = [client.profile(device.id) for device in devices if not device.profiled]
    progress(f"{len(devices) - len(unmeasured)} of {len(devices)} devices measured")
    if any(status.under_way for status in unmeasured):
        return False
    for status in unmeasured:
        if status.error is not None:
            cause = f"{status.name} could not be measured: {status.error.cause}"
            raise Unavailable(cause=cause, cure=status.error.cure)
    return not unmeasured


def is_for_all(plan: Mapping[str, Any], form: ClusterForm) -> bool:
    """Whether a plan was made for all workers and, unless the demo measures none, their measured
    speeds.
    """
    speeds = [device["speed"] for device in plan.get("made_for", ())]
    return len(speeds) == form.workers and not (form.profile and "assumed" in speeds)


def all_right(question: Question, predictions: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether exactly the objects in the picture were found; None if these are not known."""
    if question.truth is None:
        return None
    from models.vision.detection import DetectedBox

    found = [
        DetectedBox(
            str(prediction["label"]),
            int(prediction["index"]),
            float(prediction["score"]),
            tuple(prediction["box"]),
        )
        for prediction in predictions
    ]
    return exactly_right([EvaluatedPicture(found, question.truth)]) == 1


def labels(truth: Sequence[GroundTruth]) -> str:
    """The labels in order."""
    return " ".join(sorted(entry.label for entry in truth))


def _median_s(answers: Sequence[Mapping[str, Any]]) -> float:
    timings = [answer["timing_ms"] for answer in answers]
    return float(statistics.median(timing["total"] - timing["decode"] for timing in timings)) / 1000
