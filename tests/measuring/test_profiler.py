"""Profiles of real workers, measured in a fraction of a second."""

import asyncio
import os

import pytest

from coordinator.costs.cluster import EndpointOverhead
from coordinator.devices.announcements import Announcements
from coordinator.devices.profiles import Profiles
from coordinator.measuring.profiler import Profiled, Profiler
from coordinator.requests.admission import Admission
from coordinator.trust.cluster_state import PROFILES, ClusterState
from tests.devices.support import connected, worker_process
from tests.waiting import until
from tests.worker.support import in_process

BUDGET_S = 1.0


@pytest.fixture
async def connection(tmp_path):
    async with (
        in_process(tmp_path / "state") as running,
        connected(running.address) as (opened,),
    ):
        yield opened


class Measured:
    """A profiler over a folder, which counts its profiles."""

    def __init__(self, folder, admission=None, state=None, budget_s=BUDGET_S):
        self.folder = folder
        self.done = 0
        self.profiles = Profiles(folder, state or ClusterState(folder.parent))
        announcements = Announcements()
        announcements.on(Profiled, self._count)
        self.profiler = Profiler(
            self.profiles, announcements, admission or Admission(1, 1, 1.0), budget_s
        )

    def _count(self, _news):
        self.done += 1

    def file(self, connection):
        return self.folder / f"{connection.facts.fingerprint}.json"


async def test_a_profile_is_measured_once_and_kept_on_disk(tmp_path, connection):
    first = Measured(tmp_path / "profiles")
    assert first.profiles.of(connection.facts) is None
    first.profiler.want(connection)
    await until(lambda: first.profiler.measuring)
    device, share = first.profiler.measuring
    assert device == connection.facts.id
    assert 0 <= share <= 1
    await until(lambda: first.done)
    profile = first.profiles.of(connection.facts)
    assert profile.fits
    assert profile.fingerprint["cpu"] == connection.facts.cpu
    assert first.profiler.measuring is None
    assert list(first.folder.iterdir()) == [first.file(connection)]

    again = Measured(tmp_path / "profiles")
    assert again.profiles.of(connection.facts) == profile
    again.profiler.want(connection)
    again.profiler.want(connection, again=True)
    await until(lambda: again.done == 1)
    await again.profiler.stop()


@pytest.mark.parametrize("content", [b"", b"\0\xff", b'{"format": 1}', b'{"format": 1, "fi'])
async def test_a_damaged_file_is_ignored_and_measured_again(tmp_path, connection, content):
    measured = Measured(tmp_path / "profiles")
    measured.folder.mkdir()
    measured.file(connection).write_bytes(content)
    assert measured.profiles.of(connection.facts) is None
    measured.profiler.want(connection)
    await until(lambda: measured.done)
    assert Measured(measured.folder).profiles.of(connection.facts) is not None


async def test_no_sample_begins_while_a_request_is_computed(tmp_path, connection):
    admission = Admission(1, 1, 1.0)
    measured = Measured(tmp_path / "profiles", admission)
    async with admission.place():
        measured.profiler.want(connection)
        await asyncio.sleep(0.2)
        assert measured.profiler.measuring is None
    await until(lambda: measured.done)


async def test_alike_devices_share_one_profile_and_stand_in_for_each_other(tmp_path):
    async with (
        worker_process(tmp_path / "a") as a,
        worker_process(tmp_path / "b") as b,
        connected(a.address, b.address) as (first, second),
    ):
        assert first.facts.fingerprint == second.facts.fingerprint
        measured = Measured(tmp_path / "profiles")
        for each in (first, second):
            measured.profiler.want(each)
        await until(lambda: measured.profiler.measuring)
        assert measured.profiler.measuring[0] == a.id
        os.kill(a.process.pid, 9)
        await until(lambda: measured.done)
        assert measured.profiles.of(first.facts) is not None
        assert measured.done == 1


async def test_stopping_ends_a_measurement(tmp_path, connection):
    measured = Measured(tmp_path / "profiles")
    measured.profiler.want(connection)
    await until(lambda: measured.profiler.measuring)
    await measured.profiler.stop()
    assert measured.profiler.measuring is None
    assert not measured.folder.exists()


async def test_endpoint_learnt_from_requests_is_kept_with_the_profile(tmp_path, connection):
    seen = EndpointOverhead(0.002, 3e-9, 0.001)
    measured = Measured(tmp_path / "profiles")
    measured.profiles.learned(connection.facts, seen)  # nothing to keep it with
    measured.profiler.want(connection)
    await until(lambda: measured.done)
    measured.profiles.learned(connection.facts, seen)
    await measured.profiles.saved()
    again = Measured(measured.folder)
    assert again.profiles.of(connection.facts).endpoint == seen
    again.profiler.want(connection, again=True)
    await until(lambda: again.done)
    assert again.profiles.of(connection.facts).endpoint == seen


async def test_a_profile_of_nothing_is_none(tmp_path, connection):
    """No sample came back: the device works on its prior, and people are told."""
    measured = Measured(tmp_path / "profiles", budget_s=1e-9)
    measured.profiler.want(connection)
    await until(lambda: measured.profiler.failures)
    assert "too few samples" in measured.profiler.failures[connection.facts.id].cause
    assert measured.profiles.of(connection.facts) is None
    assert not measured.done


class Shared(ClusterState):
    """A state that several coordinators share."""

    url = "nats://127.0.0.1:4222"


async def test_profile_measured_by_another_coordinator_is_used(tmp_path, connection):
    state = Shared(tmp_path)
    first, second = (Measured(tmp_path / name, state=state) for name in ("first", "second"))
    first.profiler.want(connection)
    await until(lambda: first.done)
    (told,) = state.entries(PROFILES).values()
    assert len(told["profile"]) < 8000
    second.profiler.want(connection)
    await until(lambda: second.done)
    ours, theirs = (each.profiles.of(connection.facts) for each in (first, second))
    assert ours == theirs
    assert second.file(connection).exists()
    second.profiler.want(connection, again=True)
    await until(lambda: second.done == 2)
    assert second.profiles.of(connection.facts) != theirs


@pytest.mark.parametrize("told", ["", "garbage", '{"format": 2}', "[" * 10_000])
async def test_a_profile_that_is_none_is_measured(tmp_path, connection, told):
    state = Shared(tmp_path)
    kind = connection.facts.fingerprint
    state.change((PROFILES,), lambda entries: entries.update({kind: {"profile": told}}))
    measured = Measured(tmp_path / "own", state=state)
    measured.profiler.want(connection)
    await until(lambda: measured.done)
    assert measured.profiles.of(connection.facts).fits
