"""Clocks that are wrong: named as that, on both sides; and certificates renewed as years go by."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509

from coordinator.devices import children
from coordinator.devices.addresses import PeerState
from coordinator.devices.handshake import Shaken, clock_problem, judged
from imbrex.client import Client
from protos.trust.identity import certificate_end, now_utc
from tests.devices.support import watched_pool, worker_process
from tests.trust.support import DAY, KITCHEN, admit, give_identity, identity, make_trust
from tests.waiting import until

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
needs_faketime = pytest.mark.skipif(
    FAKETIME is None, reason="needs libfaketime (apt-get install libfaketime)"
)
# A process that is forked has the clock of this one.
EXECUTED = ("env",)


def moved(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """Processes that are started from now on have another wall clock."""
    monkeypatch.setenv("LD_PRELOAD", str(FAKETIME))
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    monkeypatch.setenv("DONT_FAKE_MONOTONIC", "1")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@needs_faketime
async def test_a_worker_whose_clock_is_a_year_ahead_is_named_on_both_sides(
    trust, tmp_path, monkeypatch
):
    give_identity(trust.certified, tmp_path / "old", KITCHEN)
    admit(trust.certified, KITCHEN)
    with monkeypatch.context() as environment:
        moved(environment, FAKETIME="+400d")
        started = worker_process(tmp_path / "old", within=EXECUTED)
        running = await started.__aenter__()
    try:
        async with watched_pool(running.address, trust=trust) as watched:
            await until(lambda: watched.peer(running.address).state is PeerState.REFUSED)
            reason = watched.peer(running.address).reason
            assert "rejects our certificate" in reason
            assert "the clock of that device must show another time" in reason
            assert f"{now_utc():%Y-%m-%d}" in reason
            end = certificate_end(trust.certified.credentials.identity.certificate_pem)
            assert f"{end:%Y-%m-%d}" in reason
            assert "timedatectl" in watched.peer(running.address).cure
    finally:
        running.process.kill()
        said = (await asyncio.to_thread(running.process.stderr.read)).decode()
        await started.__aexit__(None, None, None)
    assert "this device's certificate cannot be used" in said
    assert f"{now_utc() + 400 * DAY:%Y-%m-%d}" in said


async def test_a_certificate_that_has_expired_here_is_named_with_our_clock(trust, tmp_path):
    give_identity(trust.certified, tmp_path / "old", KITCHEN, valid_for=-DAY)
    admit(trust.certified, KITCHEN)
    async with (
        worker_process(tmp_path / "old") as running,
        watched_pool(running.address, trust=trust) as watched,
    ):
        await until(lambda: watched.peer(running.address).state is PeerState.REFUSED)
        reason = watched.peer(running.address).reason
        assert "its certificate has expired" in reason
        assert f"{now_utc() - DAY:%Y-%m-%d}" in reason
        assert f"the clock of this device says {now_utc():%Y-%m-%d}" in reason


def test_refusal_without_a_wrong_clock_is_not_called_one(trust):
    own = certificate_of(trust.certified.credentials.identity.certificate_pem)
    theirs = certificate_of(identity(trust.certified, KITCHEN).certificate_pem)
    assert judged("a:1", Shaken(theirs, False), own, now_utc()) is None
    early = datetime(2020, 1, 1, tzinfo=UTC)
    assert "is not valid yet" in judged("a:1", Shaken(theirs, False), own, early).cause
    late = now_utc() + 400 * DAY
    assert "its certificate has expired" in judged("a:1", Shaken(theirs, False), own, late).cause


async def test_a_worker_of_another_cluster_is_not_told_to_set_its_clock(trust, tmp_path):
    strangers = make_trust(tmp_path / "strangers")
    give_identity(strangers.certified, tmp_path / "theirs", KITCHEN)
    async with worker_process(tmp_path / "theirs") as running:
        credentials = trust.caller.credentials
        assert await clock_problem(running.address, credentials) is None
        assert await clock_problem("127.0.0.1:9", credentials) is None


def certificate_of(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def test_a_coordinator_that_was_off_for_long_renews_its_own(trust, tmp_path, monkeypatch):
    before = trust.certified.credentials.identity.expires
    for days in (200, 300, 1000):
        later = now_utc() + days * DAY
        monkeypatch.setattr("coordinator.trust.trust.now_utc", lambda later=later: later)
        again = make_again(tmp_path / "coordinator")
        assert (again > before) == (days > 250)


def make_again(state: Path) -> datetime:
    from coordinator.trust.trust import Trust

    return Trust.load(state).certified.credentials.identity.expires


@asynccontextmanager
async def cluster(state: Path, tmp_path: Path) -> AsyncIterator[SimpleNamespace]:
    """A coordinator and a worker that are processes, under the clock of this environment."""
    async with worker_process(tmp_path / "kitchen", within=EXECUTED) as worker:
        arguments = ["coordinator", "--no-mdns", "--port", "0", "--state-dir", str(state)]
        arguments += ["--no-host-computes", "--no-profile", "--worker", worker.address]
        config = tmp_path / "coordinator.toml"
        config.write_text('enrol_host = "127.0.0.1"\nenrol_port = 0\n')
        child = children.start(
            "coordinator", [*arguments, "--config", str(config)], state, state / "ready.json"
        )
        try:
            await until(lambda: child.ready() is not None)
            with Client(child.ready()["url"]) as client:
                yield SimpleNamespace(worker=worker, client=client)
        finally:
            await asyncio.to_thread(children.stop, [child])


@pytest.mark.slow
@needs_faketime
async def test_certificates_are_renewed_between_processes_as_the_years_go_by(
    trust, tmp_path, monkeypatch
):
    give_identity(trust.certified, tmp_path / "kitchen", KITCHEN)
    admit(trust.certified, KITCHEN)
    clock = tmp_path / "clock"
    clock.write_text("+0d")
    moved(monkeypatch, FAKETIME_TIMESTAMP_FILE=str(clock), FAKETIME_CACHE_DURATION="1")
    own = tmp_path / "coordinator" / "cluster" / "coordinator.pem"
    theirs = tmp_path / "kitchen" / "identity.pem"
    async with cluster(tmp_path / "coordinator", tmp_path) as running:
        await until(lambda: ready(running.client))
        for months in range(9, 37, 9):  # more than two thirds of a year each
            days = months * 30
            clock.write_text(f"+{days}d")
            end = now_utc() + timedelta(days=days + 360)
            for path in (own, theirs):
                await until(renewed(path, end), 40)
            assert ready(running.client)


def ready(client: Client) -> bool:
    return [each.state for each in client.devices()] == ["ready"]


def renewed(path: Path, end: datetime) -> Callable[[], bool]:
    def is_renewed() -> bool:
        certificates = x509.load_pem_x509_certificates(path.read_bytes().split(b"KEY-----\n")[-1])
        return certificates[0].not_valid_after_utc > end

    return is_renewed
