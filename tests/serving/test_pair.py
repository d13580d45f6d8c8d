"""Two coordinators of one cluster behind the HAProxy configuration of deploy/haproxy: all of them
real processes, with TLS.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from benchmarks.pair.clients import CLIENTS, Clients, Seen
from benchmarks.pair.processes import HAPROXY, Pair, pair
from benchmarks.store import SERVER
from imbrex.client import Client
from models.digits.examples import examples
from tests import forked
from tests.serving.processes import wait

MODEL = "digits"

pytestmark = [
    pytest.mark.skipif(not HAPROXY or not SERVER, reason="needs HAProxy and NATS: make servers"),
    pytest.mark.needs_room("coordinator/several"),
]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with (
        forked.instead(),
        pair(tmp_path_factory.mktemp("pair"), MODEL, workers=2, pace=0.5) as found,
    ):
        yield found


@pytest.fixture
def made(started: Pair) -> Pair:
    """The pair, whole: each test starts again whatever it has killed."""
    started.whole()
    return started


def more(seen: Seen, count: int = 4 * CLIENTS) -> None:
    """Returns after so many further answers."""
    wanted = seen.requests + count
    wait(lambda: seen.requests >= wanted)


def test_no_request_is_lost_with_a_coordinator_or_a_server_of_the_store(made: Pair) -> None:
    clients = Clients(made.url, MODEL)
    with clients.asking() as seen:
        more(seen)
        for each in made.members:
            each.kill()
            more(seen)
            each.start()
            made.whole()
        node = made.store.nodes[0]
        node.kill()
        more(seen)
        node.start()
        more(seen)
    assert (set(seen.statuses), seen.wrong) == ({200}, 0), seen.errors


def test_the_client_asks_again_when_its_coordinator_is_gone(made: Pair) -> None:
    image = examples()[0].path.read_bytes()
    with Client(made.members[0].url) as client:
        expected = client.infer(MODEL, image, "image/png").predictions
        made.members[0].kill()
        made.members[0].start()
        wait(lambda: made.members[0].is_ready(2))
        assert client.infer(MODEL, image, "image/png").predictions == expected


@pytest.mark.needs_room("coordinator/serving/oip")
def test_drain_at_one_coordinator_holds_at_the_other(made: Pair) -> None:
    one, two = (httpx.Client(base_url=each.url, timeout=60) for each in made.members)
    with one, two:
        assert one.post("/v1/devices/worker-1/drain").is_success
        wait(lambda: state(two, "worker-1") == "drained")
        for node in made.store.nodes[:2]:
            node.kill()
        refused = two.post("/v1/devices/worker-1/resume")
        assert refused.status_code == 503
        assert "cannot be changed" in refused.json()["error"]["cause"]
        assert one.get("/v2/health/ready").is_success
        for node in made.store.nodes[:2]:
            node.start()
        wait(lambda: two.post("/v1/devices/worker-1/resume").is_success)
        wait(lambda: state(one, "worker-1") == "ready")


def state(http: httpx.Client, device: str) -> str:
    found = http.get("/v1/devices").json()["devices"]
    return str(next((each["state"] for each in found if each["name"] == device), ""))
