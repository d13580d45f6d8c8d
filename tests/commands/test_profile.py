"""`imbrex profile` and `imbrex status --save`: measured, saved, read again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from coordinator.costs.cluster import Cluster, Device, Link
from coordinator.costs.corrections import CorrectedCosts
from coordinator.costs.profile_json import parse_profile
from coordinator.costs.rates import RateCosts
from coordinator.costs.regression import RegressionCosts
from coordinator.devices.describe import describe
from coordinator.serving.v1.answers import ClusterFiles
from imbrex.calls import plain
from imbrex.demo.measurement import all_profiled
from imbrex.described import load_cluster
from models.operators.work import NodeWork
from protos.errors import PeerViolation, Unavailable
from protos.wire.facts import DeviceId
from tests.cli.run_cli import imbrex, refused
from tests.commands.conftest import Live, started, wait_for

CONV = NodeWork("convolution", 10**8, 10**6, 10**6, 10**5, 64, 64, 1568, 9)
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A cluster of one worker, measured for a second and a half."""
    with started(tmp_path_factory.mktemp("measured"), 1, profile_s=1.5) as live:
        assert live.client.profile("worker-1").state == "unmeasured"
        yield live


def test_a_device_is_measured_saved_and_planned_for(measured: Live, tmp_path: Path) -> None:
    people = measured.ask("profile", "--device", "worker-1")
    assert people.code == 0, people.err
    assert "fused blocks" in people.out
    assert "convolution" in people.out
    before = plain(measured.client.profile("worker-1"))["profile"]
    again = measured.ask("profile", "--json").json()["devices"]
    assert [each["state"] for each in again] == ["measured"]
    assert again[0]["profile"] != before
    # Its link is probed after it, when nothing is computed.
    wait_for(lambda: measured.client.devices()[0].profiled)

    file = tmp_path / "home.toml"
    assert str(file) in measured.ask("status", "--save", file).out
    cluster = load_cluster(file)
    assert [device.name for device in cluster.devices] == ["worker-1"]
    (kept,) = tmp_path.glob("home-*.json")
    profile = parse_profile(kept.read_bytes())
    assert set(profile.fits) == set(again[0]["profile"]["fits"])

    plan = tmp_path / "plan.json"
    arguments = ("plan", measured.file, "--cluster", file, "--strategy", "lw", "--save", plan)
    assert imbrex(*arguments, "--json").json()["devices_used"] == ["worker-1"]
    simulate = imbrex("simulate", measured.file, "--cluster", file, "--json").json()
    measured.client.plan("tiny")
    live = measured.client.plan_now("tiny")
    assert simulate["strategies"]["single"]["latency_s"] == pytest.approx(
        live.predicted_now_s, rel=0.5
    )
    answer = measured.ask(
        "infer", measured.tensors, "--model", "tiny", "--plan", plan, "--json"
    ).json()
    assert answer["devices"] == [measured.client.devices()[0].id]


def test_devices_that_cannot_be_measured(measured: Live) -> None:
    assert "'pi-9'" in measured.refuses("profile", "--device", "pi-9")
    assert "--url" in refused("profile", "--url", NOWHERE).err
    for method in ("GET", "POST"):
        for name in ("pi-9", "..%2F..", "a" * 500):
            url = f"{measured.client.url}/v1/devices/{name}/profile"
            response = httpx.request(method, url, trust_env=False)
            assert response.status_code == 404
            assert response.json()["error"]["cure"]
    long = httpx.get(f"{measured.client.url}/v1/cluster?stem={'a' * 65}", trust_env=False)
    assert long.status_code == 422


def test_a_demo_whose_device_cannot_be_measured_ends_at_once(tmp_path: Path) -> None:
    """No sample comes back in so short a time."""
    with started(tmp_path, 1, profile_s=1e-9) as live:
        live.client.profile_again("worker-1")
        wait_for(lambda: live.client.profile("worker-1").state == "failed")
        with pytest.raises(Unavailable, match="worker-1 could not be measured: too few samples"):
            all_profiled(live.client, progress=lambda _: None)


def test_observed_corrections_are_saved(measured: Live, tmp_path: Path) -> None:
    measured.ask("profile", "--json")
    profile = parse_profile(_only(measured.client.cluster_files().profiles))
    link = Link(1e6, 0.001, 0.002)
    costs = (CorrectedCosts(RegressionCosts(profile), 1.5), RateCosts(2.0), RateCosts(3.0))
    names = ("../pi 1", "host", "twin")
    devices = [
        Device(DeviceId(f"id-{n}"), name, each, link, 1.0, 10**9)
        for n, (name, each) in enumerate(zip(names, costs, strict=True))
    ]
    twin = Device(DeviceId("id-3"), "twin", RateCosts(4.0), Link(2e6), 1.0, 0)
    described = describe(Cluster((*devices, twin)), "../x")
    assert set(described.profiles) == {"___x-___pi_1.json"}
    file = tmp_path / "home.toml"
    file.write_text(described.text)
    (tmp_path / "___x-___pi_1.json").write_text(_only(described.profiles))
    found = {device.name: device for device in load_cluster(file).devices}
    assert set(found) == {"../pi 1", "id-1", "id-2", "id-3"}
    assert found["../pi 1"].costs.block_s([CONV]) == pytest.approx(costs[0].block_s([CONV]))
    assert found["id-3"].link.bytes_per_s == pytest.approx(2e6)
    assert found["id-2"].memory_bytes == 10**9


class Stranger:
    """A coordinator that names a file outside."""

    url = shown = "http://stranger"

    def cluster_files(self, stem: str) -> ClusterFiles:
        return ClusterFiles(file="", profiles={"../../escape.json": "{}"})


def test_no_file_is_written_elsewhere(tmp_path: Path) -> None:
    from imbrex.cli.asking import save_cluster

    with pytest.raises(PeerViolation, match="outside"):
        save_cluster(Stranger(), tmp_path / "a" / "b" / "home.toml")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(measured: Live, tmp_path: Path) -> None:
    target = tmp_path / "missing" / "home.toml"
    assert str(target.parent) in measured.refuses("status", "--save", target)


def _only(texts: dict[str, str]) -> str:
    (text,) = texts.values()
    return text
