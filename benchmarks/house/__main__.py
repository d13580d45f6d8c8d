"""How large the house is, and how much of it one `POST /v1/models/digits/infer` passes.

A worker and a coordinator are started, which note what they call. Counted are the functions that
each of several requests called, on the coordinator or on the worker, and the files that these are
in, without what goes on beside requests or after their answers.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from benchmarks.house.counts import loose_files, package_cycles, product_lines
from benchmarks.report import command_line, emit
from models.digits.examples import examples

LOOPBACK = "127.0.0.1"
WORKERS = 1
REQUESTS = 10
WARM_UP = 5
START_S = 60.0
URL = "/v1/models/digits/infer"

Passed = set[tuple[str, str]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the counts."""
    parser = command_line(__doc__)
    parser.add_argument("--list", action="store_true", help="the functions, too")
    given = parser.parse_args(arguments)
    passed = passed_by_requests()
    cycles = package_cycles()
    result: dict[str, Any] = {
        "files_per_request": len({file for file, _ in passed}),
        "functions_per_request": len(passed),
        "product_lines": product_lines(),
        "loose_files": loose_files(),
        "package_cycles": len(cycles),
        "cycles": cycles,
    }
    if given.list:
        result["passed"] = sorted(f"{file}: {name}" for file, name in passed)
    text = "\n".join(f"{key:24} {value}" for key, value in result.items() if key[-1] != "d")
    emit(result, given, text)
    return 0


def passed_by_requests() -> Passed:
    """Functions that every request calls."""
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        folders = [folder / f"worker{number}" for number in range(WORKERS)]
        workers = [stack.enter_context(_traced(each, _worker(each.name))) for each in folders]
        told = [_told(*each) for each in zip(workers, folders, strict=True)]
        folders.append(folder / "coordinator")
        arguments = _coordinator([each["address"] for each in told])
        host = stack.enter_context(_traced(folders[-1], arguments))
        url = _told(host, folders[-1])["url"] + URL
        _ask(url, [*workers, host])
        stack.close()
        called = [json.loads((each / "called.json").read_text()) for each in folders]
    return {(file, name) for each in called for file, name in each}


def _worker(name: str) -> list[str]:
    return ["worker", "--name", name, "--no-mdns"]


def _coordinator(addresses: Sequence[str]) -> list[str]:
    options = ["--no-host-computes", "--no-profile", "--no-mdns", "--model", "digits"]
    return ["coordinator", *options, *(f"--worker={each}" for each in addresses)]


@contextmanager
def _traced(folder: Path, arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir()
    command = [sys.executable, "-m", "benchmarks.house.traced", str(folder / "called.json")]
    command += [*arguments, "--host", LOOPBACK, "--port", "0", "--state-dir", str(folder)]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def _told(process: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    """What its ready file says."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            told: dict[str, Any] = json.loads((folder / "ready.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(0.1)
            continue
        return told
    raise SystemExit(f"it did not start:\n{(folder / 'log').read_text()}")


def _ask(url: str, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Some requests that nobody counts, and those that are, each in a window of its own."""
    body = examples()[0].path.read_bytes()
    with httpx.Client(timeout=START_S, headers={"Content-Type": "image/png"}) as client:
        for number in range(-WARM_UP, REQUESTS):
            if number >= 0:
                _signal(processes, signal.SIGUSR1)
            client.post(url, content=body).raise_for_status()
            if number >= 0:
                _signal(processes, signal.SIGUSR2)


def _signal(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for each in processes:
        each.send_signal(number)
    time.sleep(0.2)  # until all have taken it


if __name__ == "__main__":
    raise SystemExit(main())
