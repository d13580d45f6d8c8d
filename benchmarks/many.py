"""Many devices on this machine: real worker processes that are found over mDNS on loopback, and one
coordinator.

    python -m benchmarks.many [--workers 64] [--idle 30] [--json]

`found_s` is from the start of the coordinator until all are ready, `left_s` from a worker's end
until the coordinator knows, `joined_s` from its return until it is ready. The links are probed one
after the other, which takes until `probed_s`; `probing_percent` is the coordinator's CPU meanwhile,
`idle_percent` afterwards, while nothing is asked, in percent of a core. `disturbed` counts the
other devices that were not ready at some time while one went and came, `lost` the requests
meanwhile.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]

from benchmarks.report import command_line, emit
from coordinator.devices import children
from coordinator.devices.link_file import LINKS_FILE
from imbrex import Client, ImbrexError
from models.digits.examples import examples

LOOPBACK = "127.0.0.1"
MODEL = "digits"
# As slow as this, idle workers and their exams leave the cores to the coordinator.
PACE = 0.05
START_S = 120.0
PROBED_S = 900.0
# The coordinator saves after each link; if it has not for so long, none is left.
QUIET_S = 15.0
FOUND_S = 30.0
IDLE_PERCENT = 6.0
_POLL_S = 0.05


class Home:
    """A coordinator and workers, each in a process of its own."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._cluster = f"many-{uuid.uuid4().hex[:8]}"
        self.running: list[children.Child] = []
        self.workers = [self.worker(number) for number in range(1, count + 1)]
        self.wait(lambda: all(worker.ready() for worker in self.workers))
        began_s = time.monotonic()
        state = folder / "coordinator"
        arguments = ["coordinator", "--cluster", self._cluster, "--interface", LOOPBACK]
        arguments += ["--host", LOOPBACK, "--port", "0", "--grpc-port", "0"]
        arguments += ["--state-dir", str(state), "--model", MODEL, "--strategy", "single"]
        arguments += ["--no-host-computes", "--no-profile"]
        self.coordinator = self._started("coordinator", arguments, state)
        self.wait(lambda: bool(self.coordinator.ready()))
        self.url = (self.coordinator.ready() or {})["url"]
        self.client = Client(self.url)
        self.wait(lambda: self.ready() == count)
        self.found_s = time.monotonic() - began_s
        self._links = state / LINKS_FILE

    def probe(self) -> tuple[float, float]:
        """Waits until all links have been probed: the seconds that it took, and the coordinator's
        CPU meanwhile, in percent of a core.
        """
        before, began_s = cpu_s(self.coordinator.process.pid), time.monotonic()
        self.wait(self._has_probed, PROBED_S)
        lasted_s = time.monotonic() - began_s
        spent = cpu_s(self.coordinator.process.pid) - before
        return lasted_s - QUIET_S, 100 * spent / lasted_s

    def _has_probed(self) -> bool:
        links = self._links
        return links.exists() and time.time() - links.stat().st_mtime > QUIET_S

    def worker(self, number: int, port: str = "0") -> children.Child:
        """Starts one."""
        name = f"worker-{number}"
        state = self._folder / name
        arguments = ["worker", "--name", name, "--cluster", self._cluster, "--host", LOOPBACK]
        arguments += ["--port", port, "--state-dir", str(state), "--pace", str(PACE)]
        arguments += ["--engine", "onnxruntime", "--interface", LOOPBACK]
        return self._started(name, arguments, state)

    def _started(self, name: str, arguments: Sequence[str], state: Path) -> children.Child:
        made = children.start(name, arguments, state, state / "ready.json")
        self.running.append(made)
        return made

    def states(self) -> dict[str, str]:
        """The state of each device by name."""
        return {device.name: device.state for device in self.client.devices()}

    def ready(self) -> int:
        """How many devices can be used."""
        return Counter(self.states().values())["ready"]

    def wait(self, done: Callable[[], bool], patience_s: float = START_S) -> None:
        """Returns when it is done, polling, since processes notify nobody here."""
        children.wait_until(done, "it took too long", self.running, patience_s)

    def stop(self) -> None:
        """Ends everything."""
        children.stop(self.running)


def cpu_s(pid: int) -> float:
    """The seconds of CPU that a process has taken."""
    spent = psutil.Process(pid).cpu_times()
    return float(spent.user + spent.system)


def cpu_percent(pid: int, seconds: float) -> float:
    """The CPU of a process within this time, in percent of a core."""
    before = cpu_s(pid)
    time.sleep(seconds)  # what is measured is what it does by itself
    return 100 * (cpu_s(pid) - before) / seconds


class Watch:
    """Requests, one after another, and the states of some devices meanwhile."""

    def __init__(self, home: Home, names: Sequence[str]) -> None:
        self.disturbed: set[str] = set()
        self.answers = self.lost = 0
        self._home, self._names = home, names
        self._stop = threading.Event()

    def _ask(self) -> None:
        picture = examples()[0].path.read_bytes()
        with Client(self._home.url) as client:
            while not self._stop.is_set():
                try:
                    client.infer(MODEL, picture)
                    self.answers += 1
                except ImbrexError:
                    self.lost += 1

    def _look(self) -> None:
        with Client(self._home.url) as client:
            while not self._stop.wait(_POLL_S):
                states = {device.name: device.state for device in client.devices()}
                self.disturbed |= {name for name in self._names if states.get(name) != "ready"}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the context lasts."""
        threads = [threading.Thread(target=target) for target in (self._ask, self._look)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()


def measure(count: int, idle_s: float) -> dict[str, Any]:
    """Starts so many workers, and measures."""
    with tempfile.TemporaryDirectory(prefix="imbrex-many-") as folder:
        home = Home(Path(folder), count)
        try:
            probed_s, percent = home.probe()
            started = {
                "workers": count,
                "found_s": round(home.found_s, 1),
                "probed_s": round(home.found_s + probed_s, 1),
                "probing_percent": round(percent, 1),
            }
            return started | _measured(home, idle_s)
        finally:
            home.stop()


def _measured(home: Home, idle_s: float) -> dict[str, Any]:
    home.client.infer(MODEL, examples()[0].path.read_bytes())
    pid = home.coordinator.process.pid
    idle = cpu_percent(pid, idle_s)
    began_s = time.monotonic()
    told = home.client.devices()
    status_s = time.monotonic() - began_s
    *others, last = home.workers
    port = (last.ready() or {})["address"].rpartition(":")[2]
    watch = Watch(home, [worker.name for worker in others])
    with watch.watching():
        home.running.remove(last)
        last.process.kill()
        last.process.wait()
        began_s = time.monotonic()
        home.wait(lambda: home.states().get(last.name) != "ready")
        left_s = time.monotonic() - began_s
        back = home.worker(len(home.workers), port)
        home.wait(lambda: back.ready() is not None)
        began_s = time.monotonic()
        home.wait(lambda: home.states().get(back.name) == "ready")
        joined_s = time.monotonic() - began_s
    return {
        "idle_percent": round(idle, 1),
        "resident_mb": round(psutil.Process(pid).memory_info().rss / 1e6),
        "status_s": round(status_s, 3),
        "status_rows": len(told),
        "joined_s": round(joined_s, 2),
        "left_s": round(left_s, 2),
        "disturbed": len(watch.disturbed),
        "requests": watch.answers,
        "lost": watch.lost,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 where a target is missed."""
    parser = command_line(__doc__)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--idle", type=float, default=30.0, metavar="SECONDS")
    chosen = parser.parse_args(arguments)
    found = measure(chosen.workers, chosen.idle)
    ok = found["found_s"] <= FOUND_S and found["idle_percent"] <= IDLE_PERCENT
    ok = ok and not found["disturbed"] and not found["lost"]
    targets = {"found_s": FOUND_S, "idle_percent": IDLE_PERCENT, "disturbed": 0, "lost": 0}
    emit({**found, "asked": targets, "ok": ok}, chosen, _text(found))
    return int(not ok)


def _text(found: dict[str, Any]) -> str:
    return (
        f"{found['workers']} workers: found in {found['found_s']} s, all links known after "
        f"{found['probed_s']} s; the coordinator takes {found['probing_percent']} % of a core "
        f"until then, {found['idle_percent']} % idle, and {found['resident_mb']} MB; one was "
        f"missed after {found['left_s']} s and was back in {found['joined_s']} s, which disturbed "
        f"{found['disturbed']} others and lost {found['lost']} of {found['requests']} requests"
    )


if __name__ == "__main__":
    sys.exit(main())
