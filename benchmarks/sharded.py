"""Networks larger than a device: workers under caps of memory, each of which holds its share.

    python -m benchmarks.sharded [--cases vgg16:4:300,vgg16:3:400] [--lose] [--rate]
        [--engine NAME] [--json]

Each case is MODEL:WORKERS:MEGABYTES; a model is a name or a file. Every worker is a process in a
memory cgroup (version 1, root) from its start: loading libraries, receiving and preparing weights,
computing, and the page cache of its files count. `peak_mb` is the most that was in use, of which
`anonymous_mb` cannot be dropped, and `kills` the processes that the kernel ended. `resident_mb`,
the resident set at the end, also has the pages of libraries, which all processes of this machine
share. The answer is compared with the whole model in onnxruntime. `--lose` then kills a worker: the
others fetch its share, or requests are refused with how much memory is missing. `simulated` is how
many times as fast as one Pi 4 with the memory as many Pi 4s are with theirs, for one image and for
many. `--rate` measures that of many: images per second of many clients, over those of one worker
with enough memory, all workers slowed down to the same share of a core, and messages over loopback.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped, unused-ignore]

from benchmarks.cgroup import MB, Cap, capped, missing
from benchmarks.clients import asking
from benchmarks.report import command_line, emit
from coordinator.devices import children
from coordinator.library.naming import public_name
from coordinator.planning.groups import service
from coordinator.planning.planners.auto import auto
from coordinator.planning.planners.propose import propose
from coordinator.planning.single_device import computing_s
from coordinator.serving.common.tensors import write_tensors
from imbrex import Client, ImbrexError
from imbrex.kinds.clusters import cluster_of
from imbrex.kinds.presets import load_kind
from models.catalogue.catalogue import load
from models.catalogue.loading import network_of
from models.onnx_file.importer import graph_of
from models.run.reference import WholeModel, compare, random_inputs
from protos.errors import TooLittleMemory

LOOPBACK = "127.0.0.1"
CASES = "vgg16:4:300,vgg16:3:400"
REQUESTS = 5
# So that eight workers leave some of two cores to the messages.
PACE = 0.15
# Per worker: one computes while the other is on its way.
CLIENTS = 2
# Until as many clients have the plan that suits them, and how long their answers are counted.
SETTLE_S, COUNT_S = 120.0, 180.0
# Of the hypothetical device with the memory.
ENOUGH_MB = 6000
KIND = "pi4-gbe"
START_S = 120.0
# A lost worker is noticed within 2 s; another plan takes seconds, and weights have to travel.
LOSS_S = 180.0
TOLERANCE = 1e-5
# Of one request: a picture of 3840 x 2160 as numbers has 100 MB.
MOST_BYTES = 256 << 20
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Case:
    """A model on so many workers with so much memory each."""

    model: str
    workers: int
    memory_mb: int

    @property
    def name(self) -> str:
        """What the coordinator calls the model."""
        return public_name(self.model)

    @classmethod
    def of(cls, text: str) -> Case:
        """From MODEL:WORKERS:MEGABYTES.

        Raises:
            ArgumentTypeError: it is something else.
        """
        parts = text.rsplit(":", 2)
        if len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts[1:]):
            raise ArgumentTypeError(f"{text!r} is not MODEL:WORKERS:MEGABYTES")
        return cls(parts[0], int(parts[1]), int(parts[2]))


@dataclass(frozen=True, slots=True)
class Running:
    """The processes of a case."""

    workers: tuple[children.Child, ...]
    caps: tuple[Cap, ...]
    coordinator: children.Child
    client: Client


@contextmanager
def running(case: Case, folder: Path, *flags: str) -> Iterator[Running]:
    """Workers under their caps, and a coordinator; `flags` are further ones of the workers."""
    with ExitStack() as stack:
        caps = tuple(stack.enter_context(capped(case.memory_mb)) for _ in range(case.workers))
        started: list[children.Child] = []
        stack.callback(children.stop, started)
        for number, cap in enumerate(caps, start=1):
            started.append(_worker(folder / f"worker-{number}", cap, case.memory_mb, flags))
        _wait(lambda: all(process.ready() for process in started), started)
        state = folder / "coordinator"
        config = folder / "coordinator.toml"
        config.write_text(f"max_body_bytes = {MOST_BYTES}\n")
        arguments = ["coordinator", "--config", str(config), "--port", "0", "--grpc-port", "0"]
        arguments += ["--state-dir", str(state)]
        arguments += ["--no-mdns", "--no-host-computes", "--no-profile", "--model", case.model]
        for process in started:
            arguments += ["--worker", (process.ready() or {})["address"]]
        coordinator = children.start("coordinator", arguments, state, state / "ready.json")
        started.append(coordinator)
        _wait(lambda: bool(coordinator.ready()), started)
        client = stack.enter_context(Client((coordinator.ready() or {})["url"]))
        _wait(lambda: _ready(client) == case.workers, started)
        yield Running(tuple(started[:-1]), caps, coordinator, client)


def _worker(state: Path, cap: Cap, memory_mb: int, flags: Sequence[str]) -> children.Child:
    arguments = ["worker", "--name", state.name, "--host", LOOPBACK, "--port", "0", "--no-mdns"]
    arguments += ["--state-dir", str(state), "--memory-mb", str(memory_mb), *flags]
    return children.start(state.name, arguments, state, state / "ready.json", cap.within)


def _wait(done: Callable[[], bool], alive: Sequence[children.Child]) -> None:
    children.wait_until(done, "it took too long", alive, START_S)


def _ready(client: Client) -> int:
    return sum(device.state == "ready" for device in client.devices())


def measure(case: Case, *, lose: bool, rate: bool, engine: str) -> dict[str, Any]:
    """Starts a case's processes, asks, and looks at their memory."""
    stored = load(case.model).stored
    feeds = random_inputs(graph_of(stored, case.name))
    whole = WholeModel(stored.complete(), 1).run(feeds)
    with (
        tempfile.TemporaryDirectory(prefix="imbrex-sharded-") as folder,
        running(case, Path(folder), "--engine", engine) as cluster,
    ):
        found = _asked(case, cluster, feeds, whole)
        found |= _memory(cluster)
        if lose:
            found["loss"] = _loss(case, cluster, feeds, whole)
    if rate:
        found["rate"] = _rates(case, feeds, whole)
    return found | {"simulated": _simulated(case)}


def _simulated(case: Case) -> dict[str, float]:
    """On as many emulated Pi 4s, how many times as fast as one that had the memory: a single
    image, and images per second of many.
    """
    network = network_of(load(case.model))
    free = cluster_of(load_kind(KIND), case.workers)
    devices = tuple(replace(device, memory_bytes=case.memory_mb * MB) for device in free.devices)
    cluster = replace(free, devices=devices)
    plan = propose(auto, network, cluster)
    alone_s = min(computing_s(network, free.devices))
    times = service(plan, network, cluster)
    return {
        "latency": round(alone_s / times.latency_s, 2),
        "throughput": round(alone_s / times.period_s, 2),
    }


def _asked(case: Case, cluster: Running, feeds: Arrays, whole: Arrays) -> dict[str, Any]:
    differences, seconds = [], []
    for _ in range(REQUESTS + 1):
        asked_s = time.monotonic()
        answer = cluster.client.outputs(case.name, feeds)
        seconds.append(time.monotonic() - asked_s)
        differences.append(compare(answer.arrays, whole).max_rel_error)
    plan = cluster.client.plan(case.name)
    return {
        "model": case.name,
        "workers": case.workers,
        "memory_mb": case.memory_mb,
        "strategy": plan.strategy,
        "blocks": len(plan.blocks),
        "devices": len(plan.devices_used),
        "engines": sorted({device.facts["engine"] for device in cluster.client.devices()}),
        "first_s": round(seconds[0], 2),
        "latency_s": round(statistics.median(seconds[1:]), 3),
        "max_rel_error": max(differences),
    }


def _rates(case: Case, feeds: Arrays, whole: Arrays) -> dict[str, Any]:
    """Images per second of the cluster and of one worker with enough memory; `kills` and the
    largest difference are of both.
    """
    found: dict[str, Any] = {"pace": PACE}
    one = replace(case, workers=1, memory_mb=ENOUGH_MB)
    kills, differences = 0, []
    for name, setting in (("cluster", case), ("alone", one)):
        with (
            tempfile.TemporaryDirectory(prefix="imbrex-sharded-") as folder,
            running(setting, Path(folder), "--pace", str(PACE)) as cluster,
        ):
            count = CLIENTS * setting.workers
            with asking(cluster.client, case.name, write_tensors(feeds), whole, count) as asked:
                time.sleep(SETTLE_S)
                began_s = time.monotonic()
                time.sleep(COUNT_S)
                ended_s = time.monotonic()
            answers = sum(began_s <= at + took < ended_s for at, took in asked.times)
            found[name] = {
                "images_per_s": round(answers / (ended_s - began_s), 4),
                "answers": answers,
                "lost": asked.lost[:5],
            }
            kills += sum(cap.kills for cap in cluster.caps)
            differences.append(asked.worst.max_rel_error)
    found["ratio"] = round(found["cluster"]["images_per_s"] / found["alone"]["images_per_s"], 2)
    return found | {"kills": kills, "max_rel_error": max(differences)}


def _memory(cluster: Running) -> dict[str, Any]:
    own = psutil.Process(cluster.coordinator.process.pid).memory_info()
    return {
        "worker_memory": [
            _of_worker(*pair) for pair in zip(cluster.workers, cluster.caps, strict=True)
        ],
        "coordinator_mb": {
            "resident": round(own.rss / MB, 1),
            "anonymous": round((own.rss - own.shared) / MB, 1),
        },
    }


def _of_worker(worker: children.Child, cap: Cap) -> dict[str, Any]:
    return {
        "resident_mb": round(psutil.Process(worker.process.pid).memory_info().rss / MB, 1),
        "peak_mb": round(cap.peak_mb, 1),
        "anonymous_mb": round(cap.anonymous_mb, 1),
        "kills": cap.kills,
    }


def _loss(case: Case, cluster: Running, feeds: Arrays, whole: Arrays) -> dict[str, Any]:
    """What becomes of requests when the last worker has been killed: answers by the old plan, until
    there is another one, or none.
    """
    before, answers = cluster.client.plan(case.name).version, 0
    lost = cluster.workers[-1]
    own_id = (lost.ready() or {})["id"]
    lost.process.kill()
    lost.process.wait()
    began_s = time.monotonic()
    found: dict[str, Any] = {}
    while time.monotonic() < began_s + LOSS_S:
        try:
            answer = cluster.client.outputs(case.name, feeds)
        except ImbrexError as error:
            found = {"answers_before": answers, "code": error.code, "cause": error.cause}
            if isinstance(error, TooLittleMemory):
                break
        else:
            difference = compare(answer.arrays, whole).max_rel_error
            found = {"answers_before": answers, "max_rel_error": difference}
            answers += 1
            gone = not {own_id, lost.name}.intersection(answer.origin.devices)
            if gone and answer.origin.plan_version != before:
                break
    else:
        found["code"] = "nothing changed"
    survivors = zip(cluster.workers[:-1], cluster.caps, strict=False)
    return {
        **found,
        "settled_s": round(time.monotonic() - began_s, 1),
        "workers": [_of_worker(*survivor) for survivor in survivors],
    }


def is_ok(found: dict[str, Any]) -> bool:
    """Whether what was found of a combination is as it should be."""
    loss, rate = found.get("loss", {"workers": []}), found.get("rate", {"kills": 0})
    kills = sum(worker["kills"] for worker in (*found["worker_memory"], *loss["workers"], rate))
    settled = loss.get("code", TooLittleMemory.code) == TooLittleMemory.code
    lost = any(rate[name]["lost"] for name in ("cluster", "alone") if name in rate)
    differs = max(map(_difference, (found, loss, rate))) > TOLERANCE
    return not kills and settled and not lost and not differs


def _difference(found: dict[str, Any]) -> float:
    return float(found.get("max_rel_error", 0.0))


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 where an answer differs, or a worker is killed."""
    parser = command_line(__doc__)
    parser.add_argument("--cases", type=_cases, default=CASES)
    parser.add_argument("--lose", action="store_true", help="kill a worker at the end")
    parser.add_argument("--engine", default="auto", help="of the workers")
    parser.add_argument("--rate", action="store_true", help="measure images per second, too")
    chosen = parser.parse_args(arguments)
    if why := missing():
        print(f"not measured: {why}", file=sys.stderr)
        return 1
    rows = []
    for case in chosen.cases:
        rows.append(measure(case, lose=chosen.lose, rate=chosen.rate, engine=chosen.engine))
        print(_line(rows[-1]), file=sys.stderr, flush=True)
    ok = all(map(is_ok, rows))
    emit({"cases": rows, "ok": ok}, chosen, "\n".join(map(_line, rows)))
    return int(not ok)


def _cases(text: str) -> list[Case]:
    return [Case.of(part) for part in text.split(",")]


def _line(found: dict[str, Any]) -> str:
    memory = found["worker_memory"]
    return (
        f"{found['model']} on {found['workers']} x {found['memory_mb']} MB: {found['strategy']}, "
        f"{found['blocks']} blocks on {found['devices']}; {found['latency_s']} s, difference "
        f"{found['max_rel_error']:.1e}; "
        f"resident {max(worker['resident_mb'] for worker in memory)} MB, "
        f"{sum(worker['kills'] for worker in memory)} kills"
        + (f"; after a loss {found['loss']}" if "loss" in found else "")
        + (f"; {found['rate']['ratio']} times the images of one" if "rate" in found else "")
    )


if __name__ == "__main__":
    sys.exit(main())
