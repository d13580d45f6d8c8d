"""Two clusters behind the HAProxy configuration of deploy/haproxy, all of them real processes."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import onnx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.store import free_port
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, compare, random_inputs
from tests.serving.processes import Service, serving, wait
from tests.serving.real import save_tiny

HAPROXY = shutil.which("haproxy") or ""
CONFIGURATION = Path(__file__).parents[2] / "deploy" / "haproxy" / "sites.cfg"
CLIENTS = 8

pytestmark = [
    pytest.mark.skipif(not HAPROXY, reason="needs HAProxy: make servers"),
    pytest.mark.needs_room("coordinator/serving/oip"),
]


@dataclass
class Sites:
    """One address for two clusters."""

    url: str
    control: Path
    model: Path
    home: Service
    office: Service

    def tell(self, command: str) -> str:
        """HAProxy's answer to a command at its socket."""
        with socket.socket(socket.AF_UNIX) as told:
            told.connect(str(self.control))
            told.sendall(f"{command}\n".encode())
            told.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: told.recv(4096), b"")).decode()

    def is_up(self, name: str) -> bool:
        state = next(
            line.split(",") for line in self.tell("show stat").splitlines() if f",{name}," in line
        )
        return "UP" in state[17]


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    port, control, model = free_port(), tmp_path / "control", save_tiny(tmp_path)
    with (
        serving(tmp_path / "home", ("--model", str(model))) as home,
        serving(tmp_path / "office", ("--model", str(model))) as office,
    ):
        text = CONFIGURATION.read_text()
        for written, meant in (
            ("home-hub.local:8460", home.host_port),
            ("office-hub.local:8460", office.host_port),
            ("bind :8450", f"bind 127.0.0.1:{port}"),
            ("/run/haproxy/imbrex.sock", str(control)),
        ):
            assert text.count(written) == 1
            text = text.replace(written, meant)
        file = tmp_path / "sites.cfg"
        file.write_text(text)
        proxy = subprocess.Popen([HAPROXY, "-f", str(file)], stdout=subprocess.DEVNULL)
        try:
            made = Sites(f"http://127.0.0.1:{port}", control, model, home, office)
            wait(lambda: control.exists() and made.is_up("home") and made.is_up("office"))
            yield made
        finally:
            proxy.kill()
            proxy.wait()


class Clients:
    """Clients of the Open Inference Protocol who compare each answer with the whole model's."""

    def __init__(self, url: str, file: Path) -> None:
        self.statuses: Counter[int] = Counter()
        self.wrong = 0
        proto = onnx.load(file)
        feeds = random_inputs(load_graph(proto))
        (self._right,) = WholeModel(proto, 1).run(feeds).values()
        ((name, array),) = feeds.items()
        binary = {"binary_data_size": array.nbytes}
        tensor = {"name": name, "datatype": "FP32", "shape": array.shape, "parameters": binary}
        asked = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
        header = json.dumps(asked).encode()
        self._body = header + array.tobytes()
        self._headers = {"Inference-Header-Content-Length": str(len(header))}
        self._url = f"{url}/v2/models/tiny/infer"
        self._stop = threading.Event()

    @property
    def answers(self) -> int:
        """So far, of all clients."""
        return self.statuses.total()

    def more(self, count: int = 100) -> None:
        """Returns after so many further answers."""
        wanted = self.answers + count
        wait(lambda: self.answers >= wanted)

    def _ask(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self._stop.is_set():
                answer = client.post(self._url, content=self._body, headers=self._headers)
                self.statuses[answer.status_code] += 1
                if answer.is_success:
                    self.wrong += not self._is_right(answer)

    def _is_right(self, answer: httpx.Response) -> bool:
        start = int(answer.headers["Inference-Header-Content-Length"])
        found = np.frombuffer(answer.content[start:], np.float32).reshape(self._right.shape)
        return compare({"y": found}, {"y": self._right}).max_rel_error <= 1e-5

    @contextmanager
    def asking(self) -> Iterator[None]:
        """All of them ask, one request after another."""
        threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            self._stop.set()
            for each in threads:
                each.join()


def answered(site: Service) -> float:
    """The requests that a site has answered."""
    text = httpx.get(f"{site.url}/metrics", timeout=30).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "imbrex_requests_total"
    )


def test_no_request_is_lost_with_a_site(sites: Sites) -> None:
    clients = Clients(sites.url, sites.model)
    with clients.asking():
        clients.more()
        assert answered(sites.home) > 0
        assert answered(sites.office) > 0
        sites.home.coordinator.process.kill()
        clients.more()
        wait(lambda: not sites.is_up("home"))
        clients.more()
    assert set(clients.statuses) == {200}
    assert clients.wrong == 0


@pytest.mark.slow
def test_no_request_is_lost_with_the_workers_of_a_site(sites: Sites) -> None:
    clients = Clients(sites.url, sites.model)
    with clients.asking():
        clients.more()
        for worker in sites.home.workers:
            worker.process.kill()
        clients.more(300)
    assert set(clients.statuses) == {200}
    assert clients.wrong == 0


def test_a_site_that_is_drained_gets_no_more_requests(sites: Sites) -> None:
    clients = Clients(sites.url, sites.model)
    with clients.asking():
        clients.more()
        sites.tell("set server sites/home state drain")
        clients.more(3 * CLIENTS)  # those in flight have ended
        before = answered(sites.home)
        clients.more()
        assert answered(sites.home) == before
        sites.tell("set server sites/home state ready")
        wait(lambda: answered(sites.home) > before)
    assert set(clients.statuses) == {200}
    assert clients.wrong == 0
