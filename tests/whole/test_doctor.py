"""The doctor at work: real workers, in states that are laid out for them."""

import asyncio
from types import SimpleNamespace

import pytest

from coordinator.doctor.machines import DISK_ERROR_BYTES
from protos import imbrex_pb2 as pb
from protos.wire.versions import PROTOCOL, Spoken
from tests.devices.support import advertised, unique_cluster, worker_process
from tests.waiting import until
from tests.whole.cluster import coordinator
from tests.worker.support import in_process
from worker.machine.machine import LocalMachine


async def codes(host) -> dict[str, str]:
    """What is found, and how bad that is."""
    return {each.code: each.severity for each in (await host.doctor.examine()).findings}


def changed(monkeypatch, **values: object) -> None:
    """The worker in this process has such a machine."""
    read = LocalMachine.condition

    def condition(self, state_dir, announced):
        found = read(self, state_dir, announced)
        found.MergeFrom(pb.Condition(**values))
        return found

    monkeypatch.setattr(LocalMachine, "condition", condition)


async def test_a_machine_in_a_bad_state(tmp_path, monkeypatch) -> None:
    async with (
        worker_process(tmp_path / "sound") as sound,
        in_process(tmp_path / "bad", name="bad") as bad,
        coordinator(tmp_path / "host", [sound.address, bad.address]) as host,
    ):
        before = (await host.doctor.examine()).findings
        assert not [each for each in before if each.severity == "error"], before
        changed(
            monkeypatch,
            power_flags=0x10005,
            disk_free_bytes=DISK_ERROR_BYTES - 1,
            clock_s=LocalMachine().clock() + 3600,
            governor="powersave",
        )
        found = (await host.doctor.examine()).findings
        told = {each.code: each for each in found if each.device == "bad"}
        assert {"under_voltage", "full_disk", "clock_skew", "governor"} <= set(told)
        assert told["clock_skew"].severity == "error"
        order = [("error", "warning", "note").index(each.severity) for each in found]
        assert order == sorted(order)


async def test_versions_and_identities(tmp_path, monkeypatch) -> None:
    async with worker_process(tmp_path / "a") as first:
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "id").write_text(f"{first.id}\n")
        monkeypatch.setattr("worker.machine.device_identity._boot_id", lambda: "another machine")
        monkeypatch.setattr("worker.daemon.installed_version", lambda _: "0.0.1")
        async with in_process(tmp_path / "b") as copy, in_process(tmp_path / "c") as old:
            addresses = [first.address, copy.address, old.address]
            async with coordinator(tmp_path / "host", addresses, at_least=2) as host:
                await until(lambda: any(each.state == "refused" for each in host.device_statuses()))
                found = await codes(host)
    assert found["duplicate_identity"] == "error"
    assert found["version_skew"] == "warning"


@pytest.mark.slow
async def test_worker_of_another_protocol_is_a_version_skew(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        "worker.exchange.exchange_service.versions", SimpleNamespace(SPOKEN=Spoken(PROTOCOL + 3))
    )
    async with worker_process(tmp_path / "a") as good, in_process(tmp_path / "b") as other:
        addresses = [good.address, other.address]
        async with coordinator(tmp_path / "host", addresses, at_least=1) as host:
            await until(lambda: any(each.state == "refused" for each in host.device_statuses()))
            assert (await codes(host))["version_skew"] == "error"


async def test_silent_address_is_unreachable(tmp_path) -> None:
    async with worker_process(tmp_path / "a") as good:
        nobody = "127.0.0.1:9"
        async with coordinator(tmp_path / "host", [good.address, nobody], at_least=1) as host:
            await until(lambda: any(each.state == "waiting" for each in host.device_statuses()))
            found = [
                each for each in (await host.doctor.examine()).findings if each.severity == "error"
            ]
    assert [(each.code, each.device) for each in found] == [("unreachable", nobody)]


@pytest.mark.slow
async def test_announcements_are_heard(tmp_path) -> None:
    """Of a worker that is listed; tests/lab/test_doctor.py blocks them."""
    cluster = unique_cluster()
    settings = {"mdns": True, "cluster": cluster, "interfaces": ("127.0.0.1",)}
    async with (
        worker_process(tmp_path / "a", **advertised(cluster)) as worker,
        coordinator(tmp_path / "host", [worker.address], **settings) as host,
    ):
        assert "multicast_blocked" not in await codes(host)
    settings["cluster"] = unique_cluster()
    async with (
        worker_process(tmp_path / "b", **advertised(cluster)) as worker,
        coordinator(tmp_path / "host", [worker.address], **settings) as host,
    ):
        found = await codes(host)
    assert "multicast_blocked" not in found
    assert found["other_cluster"] == "note"


async def test_caller_during_an_examination_gets_its_result(tmp_path) -> None:
    async with (
        worker_process(tmp_path / "a") as a,
        coordinator(tmp_path / "host", [a.address]) as host,
    ):
        first, impatient, third = (asyncio.create_task(host.doctor.examine()) for _ in range(3))
        await asyncio.sleep(0)
        impatient.cancel()
        assert (await first) is (await third)
        assert (await host.doctor.examine()) is not await first


async def test_further_address_of_a_device_comes_last(tmp_path) -> None:
    async with worker_process(tmp_path / "a", HOST="0.0.0.0", SECRET="s") as a:
        port = a.address.rpartition(":")[2]
        names = [f"127.0.0.{number}:{port}" for number in (1, 2)]
        async with coordinator(tmp_path / "host", names, at_least=1, secret="s") as host:
            await until(lambda: any(each.is_alias for each in host.device_statuses()))
            first, last = (each for each in host.device_statuses() if each.id == a.id)
            assert (first.is_alias, last.is_alias) == (False, True)
