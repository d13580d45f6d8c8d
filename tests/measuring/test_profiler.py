"""Profiles of real workers, measured in a fraction of a second."""

import asyncio
import os

import pytest

from coordinator.costs.cluster import EndpointOverhead
from coordinator.devices.connection import Connection
from coordinator.measuring.profiler import Profiler
from coordinator.requests.admission import Admission
from coordinator.trust.cluster_state import PROFILES, LocalState
from coordinator.trust.trust import Trust
from tests.devices.support import worker_process
from tests.waiting import until
from tests.worker.support import in_process

BUDGET_S = 1.0


@pytest.fixture
async def connection(tmp_path):
    async with in_process(tmp_path / "state") as running:
        opened = await Connection.open(running.address, Trust(), lambda *_item: None)
        opened.start(lambda _reason: None)
        yield opened
        await opened.close()


class Profiles:
    """A profiler over a folder, which counts its profiles."""

    def __init__(self, folder, admission=None, state=None):
        self.folder = folder
        self.done = 0
        self.profiler = Profiler(
            folder, self._count, admission or Admission(1, 1, 1.0), BUDGET_S, state
        )

    def _count(self):
        self.done += 1

    def file(self, connection):
        return self.folder / f"{connection.facts.fingerprint}.json"


async def test_a_profile_is_measured_once_and_kept_on_disk(tmp_path, connection):
    first = Profiles(tmp_path / "profiles")
    assert first.profiler.profile(connection.facts) is None
    first.profiler.want(connection)
    await until(lambda: first.profiler.measuring)
    device, share = first.profiler.measuring
    assert device == connection.facts.id
    assert 0 <= share <= 1
    await until(lambda: first.done)
    profile = first.profiler.profile(connection.facts)
    assert profile.fits
    assert profile.fingerprint["cpu"] == connection.facts.cpu
    assert first.profiler.measuring is None
    assert list(first.folder.iterdir()) == [first.file(connection)]

    again = Profiles(tmp_path / "profiles")
    assert again.profiler.profile(connection.facts) == profile
    again.profiler.want(connection)
    again.profiler.want(connection, again=True)
    await until(lambda: again.done == 1)
    await again.profiler.stop()


@pytest.mark.parametrize("content", [b"", b"\0\xff", b'{"format": 1}', b'{"format": 1, "fi'])
async def test_a_damaged_file_is_ignored_and_measured_again(tmp_path, connection, content):
    profiles = Profiles(tmp_path / "profiles")
    profiles.folder.mkdir()
    profiles.file(connection).write_bytes(content)
    assert profiles.profiler.profile(connection.facts) is None
    profiles.profiler.want(connection)
    await until(lambda: profiles.done)
    assert Profiles(profiles.folder).profiler.profile(connection.facts) is not None


async def test_no_sample_begins_while_a_request_is_computed(tmp_path, connection):
    admission = Admission(1, 1, 1.0)
    profiles = Profiles(tmp_path / "profiles", admission)
    async with admission.place():
        profiles.profiler.want(connection)
        await asyncio.sleep(0.2)
        assert profiles.profiler.measuring is None
    await until(lambda: profiles.done)


async def test_alike_devices_share_one_profile_and_stand_in_for_each_other(tmp_path):
    async with worker_process(tmp_path / "a") as a, worker_process(tmp_path / "b") as b:
        connections = [
            await Connection.open(each.address, Trust(), lambda *_item: None) for each in (a, b)
        ]
        first, second = connections
        assert first.facts.fingerprint == second.facts.fingerprint
        for each in connections:
            each.start(lambda _reason: None)
        profiles = Profiles(tmp_path / "profiles")
        for each in connections:
            profiles.profiler.want(each)
        await until(lambda: profiles.profiler.measuring)
        assert profiles.profiler.measuring[0] == a.id
        os.kill(a.process.pid, 9)
        await until(lambda: profiles.done)
        assert profiles.profiler.profile(first.facts) is not None
        assert profiles.done == 1
        for each in connections:
            await each.close()


async def test_stopping_ends_a_measurement(tmp_path, connection):
    profiles = Profiles(tmp_path / "profiles")
    profiles.profiler.want(connection)
    await until(lambda: profiles.profiler.measuring)
    await profiles.profiler.stop()
    assert profiles.profiler.measuring is None
    assert not profiles.folder.exists()


async def test_what_requests_show_is_kept_with_the_profile(tmp_path, connection):
    seen = EndpointOverhead(0.002, 3e-9, 0.001)
    profiles = Profiles(tmp_path / "profiles")
    profiles.profiler.learned(connection.facts, seen)  # nothing to keep it with
    profiles.profiler.want(connection)
    await until(lambda: profiles.done)
    profiles.profiler.learned(connection.facts, seen)
    await profiles.profiler.stop()
    again = Profiles(profiles.folder)
    assert again.profiler.profile(connection.facts).endpoint == seen
    again.profiler.want(connection, again=True)
    await until(lambda: again.done)
    assert again.profiler.profile(connection.facts).endpoint == seen


async def test_a_profile_of_nothing_is_none(tmp_path, connection):
    """No sample came back: the device works on its prior, and people are told."""
    profiles = Profiles(tmp_path / "profiles")
    admission = Admission(1, 1, 1.0)
    profiles.profiler = Profiler(profiles.folder, profiles._count, admission, budget_s=1e-9)
    profiles.profiler.want(connection)
    await until(lambda: profiles.profiler.failures)
    assert "too few samples" in profiles.profiler.failures[connection.facts.id].cause
    assert profiles.profiler.profile(connection.facts) is None
    assert not profiles.done


class Shared(LocalState):
    """A state that several coordinators share."""

    url = "nats://127.0.0.1:4222"


async def test_what_another_coordinator_has_measured_is_used(tmp_path, connection):
    state = Shared(tmp_path)
    first, second = (Profiles(tmp_path / name, state=state) for name in ("first", "second"))
    first.profiler.want(connection)
    await until(lambda: first.done)
    (told,) = state.entries(PROFILES).values()
    assert len(told["profile"]) < 8000
    second.profiler.want(connection)
    await until(lambda: second.done)
    ours, theirs = (each.profiler.profile(connection.facts) for each in (first, second))
    assert ours == theirs
    assert second.file(connection).exists()
    second.profiler.want(connection, again=True)
    await until(lambda: second.done == 2)
    assert second.profiler.profile(connection.facts) != theirs


@pytest.mark.parametrize("told", ["", "garbage", '{"format": 2}', "[" * 10_000])
async def test_a_profile_that_is_none_is_measured(tmp_path, connection, told):
    state = Shared(tmp_path)
    kind = connection.facts.fingerprint
    state.change((PROFILES,), lambda entries: entries.update({kind: {"profile": told}}))
    profiles = Profiles(tmp_path / "own", state=state)
    profiles.profiler.want(connection)
    await until(lambda: profiles.done)
    assert profiles.profiler.profile(connection.facts).fits
