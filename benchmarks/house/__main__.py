"""How large the house is, how it is divided, and how much of it one `POST /v1/models/digits/infer`
passes.

Workers and a coordinator are started, which note what they call. Counted are the functions (with
lambdas) that each of several requests called, on the coordinator or on a worker, and the files that
these are in, without what goes on beside requests or after their answers. This is done with one
worker, and with two that compute a plan of `halo`.

What is counted in the sources must not get worse: a test compares it with the results that are
stored (`-o benchmarks/results/house.json`).
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from benchmarks.house.counts import (
    core_lines,
    loose_files,
    package_cycles,
    page_words,
    product_lines,
)
from benchmarks.house.names import (
    callables_handed_over,
    defined_twice,
    file_circles,
    importers_of_optional_rooms,
    private_reads,
    protocols_of_one,
    statements,
    stems_twice,
)
from benchmarks.house.traced import CALLED, SIGNALS
from benchmarks.report import command_line, emit
from coordinator.devices.children import Child, start, stop, wait_until
from models.digits.examples import examples

LOOPBACK = "127.0.0.1"
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
    alone, halo = passed_by_requests(1), passed_by_requests(2)
    counts, lists = counted()
    result: dict[str, Any] = {
        "files_per_request": len({file for file, _ in alone}),
        "functions_per_request": len(alone),
        "files_per_halo_request": len({file for file, _ in halo}),
        "functions_per_halo_request": len(halo),
        **counts,
    }
    lines = [f"{key:28} {value}" for key, value in result.items()]
    if given.list:
        for kind, passed in (("passed", alone), ("passed_by_halo", halo)):
            lists[kind] = sorted(f"{file}: {name}" for file, name in passed)
        lines += [f"{key}: {entry}" for key, entries in lists.items() for entry in entries]
        result |= lists
    emit(result, given, "\n".join(lines))
    return 0


def counted() -> tuple[dict[str, int], dict[str, Any]]:
    """What is counted in the sources, and what was counted."""
    lists: dict[str, Any] = {
        "defined_twice": defined_twice(),
        "stems_twice": stems_twice(),
        "handed_over": callables_handed_over(),
        "protocols_of_one": protocols_of_one(),
        "file_circles": file_circles(),
        "room_circles": package_cycles(),
        "private_reads": private_reads(),
        "importers_of_optional_rooms": importers_of_optional_rooms(),
    }
    loose = {f"loose_in_{room}": count for room, count in loose_files().items()}
    counts = {
        "lines": product_lines(),
        "core_lines": core_lines(),
        "statements": statements(),
        "names_defined_twice": len(lists["defined_twice"]),
        "stems_in_two_places": len(lists["stems_twice"]),
        "callables_handed_over": len(lists["handed_over"]),
        "protocols_of_one_class": len(lists["protocols_of_one"]),
        **loose,
        "circles_of_files": len(lists["file_circles"]),
        "circles_of_rooms": len(lists["room_circles"]),
        "private_reads_in_tests": sum(lists["private_reads"].values()),
        "imports_of_optional_rooms": len(lists["importers_of_optional_rooms"]),
        "words_of_pages": page_words(),
    }
    return counts, lists


def passed_by_requests(workers: int) -> Passed:
    """Functions that every request calls, by so many workers. Several are so slow that the work is
    divided.
    """
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        pace = "0.02" if workers > 1 else "1"
        folders = [folder / f"worker{number}" for number in range(workers)]
        children = [
            stack.enter_context(_traced(where, _worker(where.name, pace))) for where in folders
        ]
        folders.append(folder / "coordinator")
        arguments = _coordinator([_told(child)["address"] for child in children])
        host = stack.enter_context(_traced(folders[-1], arguments))
        url = _told(host)["url"] + URL
        _ask(url, [*children, host])
        stack.close()
        called = [json.loads((where / CALLED).read_text()) for where in folders]
    return {(file, name) for pairs in called for file, name in pairs}


def _worker(name: str, pace: str) -> list[str]:
    return ["worker", "--name", name, "--no-mdns", "--pace", pace]


def _coordinator(addresses: Sequence[str]) -> list[str]:
    options = ["--no-host-computes", "--no-profile", "--no-mdns", "--model", "digits"]
    return [
        "coordinator",
        *options,
        "--strategy=halo",
        *(f"--worker={address}" for address in addresses),
    ]


@contextmanager
def _traced(folder: Path, arguments: Sequence[str]) -> Iterator[Child]:
    options = ["--host", LOOPBACK, "--port", "0", "--state-dir", str(folder)]
    within = [sys.executable, "-m", "benchmarks.house.traced", str(folder)]
    child = start(folder.name, [*arguments, *options], folder, folder / "ready.json", within)
    try:
        yield child
    finally:
        stop([child])


def _told(child: Child) -> dict[str, Any]:
    """What its ready file says."""
    wait_until(lambda: bool(child.ready()), f"{child.name} did not start", [child], START_S)
    return child.ready() or {}


def _ask(url: str, children: Sequence[Child]) -> None:
    """Some requests that nobody counts, and those that are, each in a window of its own."""
    body = examples()[0].path.read_bytes()
    with httpx.Client(timeout=START_S, headers={"Content-Type": "image/png"}) as client:
        for _ in range(WARM_UP):
            client.post(url, content=body).raise_for_status()
        for number in range(REQUESTS):
            _signal(children, signal.SIGUSR1, 2 * number + 1)
            client.post(url, content=body).raise_for_status()
            _signal(children, signal.SIGUSR2, 2 * number + 2)


def _signal(children: Sequence[Child], number: signal.Signals, count: int) -> None:
    """Sends it to all, and waits until each has taken it: its `count`-th."""
    counts = [child.ready_file.with_name(SIGNALS) for child in children]
    for child in children:
        child.process.send_signal(number)
    wait_until(
        lambda: all(path.exists() and path.read_text() == str(count) for path in counts),
        "a signal was not taken",
        children,
        START_S,
    )


if __name__ == "__main__":
    raise SystemExit(main())
