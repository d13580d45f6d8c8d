"""The coordinator is killed in the middle of a request: whoever asks again is answered."""

import signal
import threading
import time

import pytest

from benchmarks.store import free_port
from coordinator.devices import children
from imbrex.client import Client, NoCoordinator
from models.digits.examples import examples
from protos.errors import Unavailable
from tests import forked
from tests.serving.processes import wait
from tests.serving.real import started_workers

MODEL = "digits"


def answer_after_retries(client: Client, picture: bytes) -> list[object]:
    """As a client that retries: when nobody answers, or not yet."""
    pause, deadline = threading.Event(), time.monotonic() + 60
    while True:
        try:
            return client.infer(MODEL, picture, "image/png").predictions
        except (NoCoordinator, Unavailable):
            assert time.monotonic() < deadline
            pause.wait(0.1)


def states(client: Client) -> dict[str, str]:
    return {each.name: each.state for each in client.devices()}


@pytest.mark.slow
def test_a_killed_coordinator_comes_back_to_what_it_knew(tmp_path) -> None:
    picture = examples()[0].path.read_bytes()
    state = tmp_path / "coordinator"
    arguments = ["coordinator", "--no-mdns", "--port", str(free_port()), "--no-host-computes"]
    arguments += ["--grpc-port", "0", "--no-profile", "--state-dir", str(state), "--model", MODEL]
    with started_workers(tmp_path, 3) as workers:
        wait(lambda: all(child.ready() for child in workers))
        for child in workers:
            arguments += ["--worker", str(child.ready()["address"])]

        def started() -> children.Child:
            (state / "ready.json").unlink(missing_ok=True)
            return forked.start("coordinator", arguments, state, state / "ready.json")

        running = started()
        try:
            url = str(wait(running.ready)["url"])
            with Client(url) as client:
                wait(lambda: list(states(client).values()) == ["ready"] * 3)
                right = answer_after_retries(client, picture)
                client.drain("worker-3")
                wait(lambda: states(client)["worker-3"] == "drained")
                answers: list[list[object]] = []
                asking = threading.Thread(
                    target=lambda: answers.append(answer_after_retries(client, picture))
                )
                asking.start()
                running.process.send_signal(signal.SIGKILL)
                running.process.wait()
                running = started()
                wait(running.ready)
                asking.join(60)
                assert answers == [right]
                # The workers came back by themselves; who was drained is so still.
                wait(lambda: sorted(states(client).values()) == ["drained", "ready", "ready"])
                assert states(client)["worker-3"] == "drained"
                assert answer_after_retries(client, picture) == right
        finally:
            children.stop([running])
