"""`imbrex demo`: prepare, start, measure, report, clean up."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import platformdirs

from coordinator.control.given import adopt
from coordinator.planning.published import equal_cluster
from coordinator.runtime.planners import strategy
from coordinator.serving.common import names
from imbrex import terminal
from imbrex.calls import plain, read_file
from imbrex.demo.cluster import WORKER, ClusterForm, DemoCluster, Progress
from imbrex.demo.measure import measure, wait_until_profiled
from imbrex.demo.question import Question, prepare
from imbrex.demo.report import Outcome, show
from imbrex.described import find_planners_here, network_of
from imbrex.pictures import save_annotated

# Two cores run N workers, the coordinator and this process: the sum of the workers' paces leaves a
# fifth of the machine to everything else.
SHARED_CORES = 1.6


@dataclass(frozen=True, slots=True)
class Demo:
    """The user's options."""

    image: Path | None
    model: str
    workers: int
    strategy: str
    throttle: bool
    profile: bool
    keep: bool
    save: Path | None
    plan: Path | None = None
    wire: str = ""

    @property
    def pace(self) -> float:
        """Each worker's share of a core."""
        return min(1.0, SHARED_CORES / self.workers) if self.throttle else 1.0


def run(demo: Demo, *, as_json: bool) -> int:
    """Runs the demo; returns the exit code."""
    find_planners_here()
    strategy(demo.strategy)  # a wrong name is refused before anything starts
    with _ended_by_signals(), _progress() as progress:
        progress("running the whole model on this machine, for comparison")
        question = prepare(demo.model, demo.image)
        given = read_plan(demo) if demo.plan is not None else None
        form = ClusterForm(
            model=question.argument,
            workers=demo.workers,
            strategy=demo.strategy,
            pace=demo.pace,
            profile=demo.profile,
            cache=platformdirs.user_cache_path("imbrex") / "demo",
            wire=demo.wire,
        )
        progress(f"starting {demo.workers} workers and a coordinator")
        with DemoCluster(form) as cluster:
            cluster.wait_until_listening()
            cluster.wait_until_found(progress)
            if demo.profile:
                wait_until_profiled(cluster, progress)
            if given is not None:
                cluster.client.hold_plan(question.model, given)
            measured = measure(cluster, question, progress)
            devices = plain(cluster.client.devices())
            outcome = Outcome(question, devices, measured, demo.pace)
            progress("")
            if demo.save is not None:
                save_annotated(question.body, measured.first["predictions"], demo.save)
            if as_json:
                terminal.print_json(outcome.as_json())
            else:
                show(outcome, terminal.out())
                _offer(demo, outcome)
            if demo.keep:
                _keep(cluster.client.url, question)
    return 0 if outcome.ok else 1


def read_plan(demo: Demo) -> bytes:
    """The plan's file, checked before anything starts.

    Raises:
        NotFound, BadRequest, IllegalPlan: it is not a plan for this model and this number of
        workers.
    """
    assert demo.plan is not None
    text = read_file(demo.plan)
    adopt(text, network_of(demo.model), equal_cluster(demo.workers, WORKER))
    return text


def _offer(demo: Demo, outcome: Outcome) -> None:
    console = terminal.out()
    console.print()
    if demo.save is not None:
        console.print(f"annotated picture: {demo.save}")
    elif outcome.question.media_type.startswith("image/"):
        console.print("see it: imbrex demo --save answer.png")
    if not demo.keep:
        console.print("use it: imbrex demo --keep leaves the cluster up")


def _keep(url: str, question: Question) -> None:
    """Keeps the cluster running until Ctrl-C."""
    file = "INPUTS.npz" if question.media_type == names.NPZ else "IMAGE"
    print(f"the cluster runs at {url} until Ctrl-C; try:", file=sys.stderr)
    print(f"  imbrex status --url {url}", file=sys.stderr)
    print(f"  imbrex infer {file} --model {question.model} --url {url}", file=sys.stderr)
    sys.stderr.flush()
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print("stopping", file=sys.stderr)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Shows progress: a spinner on a terminal, a line per change elsewhere."""
    console, last = terminal.err(), [""]
    if console.is_terminal:
        with console.status("") as status:

            def spin(text: str) -> None:
                if text:
                    status.update(text)
                else:
                    status.stop()

            yield spin
        return

    def line(text: str) -> None:
        if text and text != last[0]:
            console.print(text)
        last[0] = text

    yield line


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Makes SIGTERM and a closed terminal unwind like Ctrl-C, so that every process is ended."""

    def unwind(number: int, frame: FrameType | None) -> None:
        del frame
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, unwind) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
