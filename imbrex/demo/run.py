"""`imbrex demo`: prepare, start, measure, report, clean up."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from coordinator.answers import IN_FORCE, PlanChoice
from coordinator.planning.planners.propose import propose
from coordinator.planning.planners.strategies import STRATEGIES
from coordinator.planning.published import equal_cluster
from coordinator.planning.single_device import computing_s, unsplit_works
from coordinator.plans.named import strategy
from coordinator.plans.sent_plan import adopt
from coordinator.serving.common import names
from coordinator.settings import HTTP_PORT
from imbrex import terminal
from imbrex.calls import plain, read_file
from imbrex.demo.demo_cluster import WORKER, ClusterForm, DemoCluster
from imbrex.demo.duration import Length, usual_s
from imbrex.demo.emulation.whole_maps import write_maps
from imbrex.demo.likeness import Likeness, own_core, suited, told, turns_in
from imbrex.demo.measurement import curve, measure, wait_until_profiled
from imbrex.demo.outcome import DemoResult, show
from imbrex.demo.progress import Progress, shown_progress
from imbrex.demo.question import Question, prepare
from imbrex.described import find_planners_here, network_of
from imbrex.kinds.clusters import cluster_of
from imbrex.kinds.presets import KINDS, Preset, load_kind
from imbrex.picture_files import save_annotated
from models.cut.units import Network
from protos.daemon.files import own_folder
from worker.engines.registry import candidates


@dataclass(frozen=True, slots=True)
class Demo:
    """The user's options."""

    image: Path | None
    model: str
    workers: int
    strategy: str
    like: str
    profile: bool
    keep: bool
    save: Path | None
    plan: Path | None = None
    wire: str = ""
    curve: bool = False
    explain: bool = False


def run(demo: Demo, *, as_json: bool) -> int:
    """Runs the demo; returns the exit code."""
    find_planners_here()
    strategy(demo.strategy)  # a wrong name is refused before anything starts
    with _ended_by_signals(), shown_progress() as progress:
        progress("the whole model on this machine, for comparison")
        question = prepare(demo.model, demo.image)
        given = read_plan(demo) if demo.plan is not None else None
        cache = own_folder("cache", "XDG_CACHE_HOME") / "demo"
        form = ClusterForm(
            model=question.argument,
            workers=demo.workers,
            strategy=demo.strategy,
            like=None,
            profile=demo.profile,
            cache=cache,
            wire=demo.wire,
            port=HTTP_PORT if demo.keep else 0,
        )
        if demo.like:
            write_maps(turns_in(cache), question.model, question.maps)
            form = _emulating(demo, form, question, progress)
        progress(f"starting {demo.workers} workers and a coordinator")
        with DemoCluster(form) as cluster:
            cluster.wait_until_listening()
            cluster.wait_until_found(progress)
            if demo.profile:
                wait_until_profiled(cluster, progress)
            outcome = _outcome(demo, cluster, question, given, progress)
            progress("")
            if demo.save is not None:
                save_annotated(question.body, outcome.measured.first["predictions"], demo.save)
            if as_json:
                terminal.print_json(outcome.as_json())
            else:
                show(outcome, terminal.out(), explain=demo.explain)
                if demo.save is not None:
                    print(f"annotated picture: {demo.save}")
            if demo.keep:
                _keep(cluster.client.url, question, form.like)
    return 0 if outcome.ok else 1


def _emulating(
    demo: Demo, form: ClusterForm, question: Question, progress: Progress
) -> ClusterForm:
    """The form for emulated devices; says how long that takes."""
    progress("measuring this machine's cores")
    core = own_core()
    preset = load_kind(KINDS[demo.like].preset).with_engines(candidates())
    length = length_of(demo, preset, question.network)
    scale, requests = suited(preset, core.gflops, length)
    progress(f"{length.told(scale, requests)}\n")
    like = told(demo.like, preset, scale, core)
    return replace(form, like=like, requests=requests)


def length_of(demo: Demo, preset: Preset, network: Network) -> Length:
    """What decides how long it takes with such devices."""
    cluster, works = cluster_of(preset, demo.workers), unsplit_works(network)
    first = cluster.devices[0]
    alone_s, (best_s,) = first.costs.block_s(works), computing_s(network, [first])
    together_s = usual_s(best_s, demo.workers)
    # `auto` is never slower than one device. Others may be, and plan within seconds.
    if demo.plan is None and demo.strategy in STRATEGIES.keys() - {"auto"}:
        plan = propose(strategy(demo.strategy), network, cluster)
        together_s = max(together_s, plan.predicted_latency_s)
    return Length(
        alone_s=alone_s,
        halves_s=best_s if best_s < alone_s else 0.0,
        together_s=together_s,
        workers=demo.workers,
        profile=demo.profile,
        curve=demo.curve,
        weight_bytes=sum(work.weight_bytes for work in works),
    )


def _outcome(
    demo: Demo, cluster: DemoCluster, question: Question, given: bytes | None, progress: Progress
) -> DemoResult:
    """Measures, by the given plan or by one that is made for all devices."""
    if given is not None:
        cluster.client.hold_plan(question.model, given)
        chosen = IN_FORCE
    else:
        chosen = PlanChoice(demo.strategy, devices=demo.workers)
    measured = measure(cluster, question, progress, chosen)
    points = curve(cluster, question, progress, measured) if demo.curve else []
    return DemoResult(
        question, plain(cluster.client.devices()), measured, cluster.form.like, points
    )


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


def _keep(url: str, question: Question, like: Likeness | None) -> None:
    """Keeps the cluster running until Ctrl-C."""
    try:
        for line in kept(url, question, like):
            print(line, file=sys.stderr, flush=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        print("stopping", file=sys.stderr)


def kept(url: str, question: Question, like: Likeness | None) -> Iterator[str]:
    """What `--keep` says of the cluster that it leaves running."""
    if like is not None and like.scale < 1:
        times = f"{1 / like.scale:g}"
        yield (
            f"note: it runs in slow motion, so that this machine keeps up with {like.kind.title}s: "
            f"times on its page and from its API are {times} times those above"
        )
    file = "INPUTS.npz" if question.media_type == names.NPZ else "IMAGE"
    yield f"the cluster runs at {url} until Ctrl-C; try:"
    yield f"  imbrex status --url {url}"
    yield f"  imbrex infer {file} --model {question.model} --url {url}"


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
