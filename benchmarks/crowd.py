"""Many clients of the HTTP interface: imbrex on paced workers beside one onnxruntime process.

A closed loop of clients, each of which sends its next picture when it has an answer. The yardstick
is what the workers' summed compute allows: as many times the best device alone (whole model, plain
onnxruntime, measured in the same cluster before and after the crowd) as there are workers. The
rival, `benchmarks.rival`, runs in the same run at the same pace.

    python -m benchmarks.crowd [--workers 3] [--pace 0.3] [--clients 32] [--seconds 30] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil  # type: ignore[import-untyped, unused-ignore]

from benchmarks.report import command_line, emit
from coordinator.cluster import children
from imbrex.demo.cluster import ClusterForm, DemoCluster
from imbrex.demo.measure import wait_until_profiled
from models.digits import MODEL
from models.digits.examples import examples
from protos.errors import Unavailable
from tests.serving.processes import free_port

LEAST_SHARE, MOST_P99 = 0.9, 3.0
START_S = 60.0


@dataclass
class Crowd:
    """What the clients saw: seconds per answer, and what was no answer."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    wrong: int = 0

    def as_json(self) -> dict[str, Any]:
        """Rates and latencies."""
        ordered = sorted(self.latencies)
        p50, p99 = statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))]
        return {
            "answers": len(ordered),
            "errors": len(self.errors),
            "wrong": self.wrong,
            "images_per_s": len(ordered) / self.seconds,
            "p50_s": p50,
            "p99_s": p99,
            "p99_over_median": p99 / p50,
        }


async def crowd(url: str, clients: int, seconds: float) -> Crowd:
    """Sends example sheets for `seconds`, over one connection per client."""
    seen = Crowd()
    sheets = [(each.path.read_bytes(), sorted(t.label for t in each.truth)) for each in examples()]
    begin = time.monotonic()

    async def client(number: int) -> None:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        body, truth = sheets[number % len(sheets)]
        head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: image/png\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        while time.monotonic() - begin < seconds:
            started = time.monotonic()
            writer.write(request)
            status, answer = await _answer(reader)
            seen.latencies.append(time.monotonic() - started)
            if status != 200:
                seen.errors.append(answer.decode(errors="replace")[:200])
            elif sorted(each["label"] for each in json.loads(answer)["predictions"]) != truth:
                seen.wrong += 1
        writer.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    seen.seconds = time.monotonic() - begin
    return seen


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body; every answer here has its length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.split("content-length:")[1].split("\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


def ours(arguments: argparse.Namespace) -> dict[str, Any]:
    """The cluster: how fast one device is, the crowd, and what its processes spent."""
    form = ClusterForm("digits", arguments.workers, "auto", arguments.pace, True, arguments.cache)
    with DemoCluster(form) as cluster:
        cluster.wait_until_listening()
        cluster.wait_until_found(_quiet)
        wait_until_profiled(cluster, _quiet)
        client = cluster.client
        url = f"{client.url}/v1/models/digits/infer"
        asyncio.run(crowd(url, 1, 2.0))
        alone = [client.baseline("digits").latency_s for _ in range(3)]
        asyncio.run(crowd(url, arguments.clients, arguments.settle))
        *_, coordinator = (psutil.Process(pid) for pid in cluster.pids)
        before = coordinator.cpu_times()
        seen = asyncio.run(crowd(url, arguments.clients, arguments.seconds))
        after = coordinator.cpu_times()
        load = next(asdict(each.load) for each in client.models() if each.name == "digits")
        alone += [client.baseline("digits").latency_s for _ in range(3)]
    spent_s = sum(after[:2]) - sum(before[:2])
    allowed = arguments.workers / statistics.median(alone)
    told = seen.as_json()
    return {
        **told,
        "one_device_per_s": 1 / statistics.median(alone),
        "workers_allow_per_s": allowed,
        "share_of_allowed": told["images_per_s"] / allowed,
        "groups": load["groups"],
        "predicted_per_s": load["capacity_per_s"],
        "coordinator_cpu_s_per_answer": spent_s / len(seen.latencies),
        "coordinator_cores": spent_s / seen.seconds,
        "first_errors": seen.errors[:3],
    }


def theirs(arguments: argparse.Namespace) -> dict[str, Any]:
    """One process at the same pace."""
    with rival_process(arguments.pace) as url:
        asyncio.run(crowd(url, arguments.clients, 2.0))
        return asyncio.run(crowd(url, arguments.clients, arguments.seconds)).as_json()


@contextmanager
def rival_process(pace: float) -> Iterator[str]:
    """The rival as a process of its own; its URL."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.rival", str(MODEL)]
    process = subprocess.Popen([*command, "--pace", str(pace), "--port", str(port)])
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        if process.poll() is not None:
            raise Unavailable(
                cause=f"the rival ended with exit code {process.returncode}",
                cure="See what it printed",
            )
        try:
            httpx.get(url)
        except httpx.ConnectError:
            return False
        return True

    try:
        children.wait_until(answers, "the rival does not answer", [], START_S)
        yield f"{url}/infer"
    finally:
        process.terminate()
        process.wait()


def _quiet(_: str) -> None:
    """Progress is not told."""


def main() -> int:
    """Prints the result; 1 where it misses what it should reach."""
    parser = command_line(__doc__)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--pace", type=float, default=0.3)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--settle", type=float, default=10.0, help="before what is counted")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/imbrex/crowd")
    arguments = parser.parse_args()
    cluster, single = ours(arguments), theirs(arguments)
    right = (
        not (cluster["errors"] or cluster["wrong"])
        and cluster["share_of_allowed"] >= LEAST_SHARE
        and cluster["p99_over_median"] < MOST_P99
    )
    text = (
        f"imbrex, {arguments.workers} workers at {arguments.pace}: "
        f"{cluster['images_per_s']:.1f} images/s, {cluster['share_of_allowed']:.0%} of what they "
        f"allow; p50 {cluster['p50_s'] * 1e3:.0f} ms, p99 {cluster['p99_over_median']:.2f} times "
        f"that; {cluster['errors']} errors, {cluster['wrong']} wrong\n"
        f"one process at {arguments.pace}: {single['images_per_s']:.1f} images/s, "
        f"p50 {single['p50_s'] * 1e3:.0f} ms\n"
        f"ratio {cluster['images_per_s'] / single['images_per_s']:.2f}"
    )
    emit(
        {
            "model": "digits",
            "workers": arguments.workers,
            "pace": arguments.pace,
            "clients": arguments.clients,
            "imbrex": cluster,
            "one_process": single,
            "ratio": cluster["images_per_s"] / single["images_per_s"],
            "ok": right,
        },
        arguments,
        text,
    )
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
