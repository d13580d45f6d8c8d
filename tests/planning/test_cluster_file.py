"""Cluster files: what they say, and what they must not."""

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.costs.affine import LayerRates
from coordinator.costs.cluster import EndpointOverhead
from coordinator.costs.profile_json import save_profile
from coordinator.costs.rates import RateCosts
from coordinator.costs.regression import DeviceProfile, LayerRegression, RegressionCosts
from coordinator.planning.cluster_file import dump_cluster, parse_cluster
from coordinator.planning.planners.propose import propose
from coordinator.planning.planners.strategies import STRATEGIES
from imbrex.described import load_cluster
from protos.errors import BadRequest
from protos.wire.limits import Limits
from tests.planning.support import small

GOOD = """
[host]
gflops = 1.85
computes = true
[network]
medium = "star"
mbps = 93.7
message_ms = 1.0
latency_ms = 2.0
[[device]]
name = "pi-1"
count = 7
gflops = 1.85
memory_mb = 700
"""


def test_the_file_of_the_design() -> None:
    cluster = parse_cluster(GOOD)
    assert [device.id for device in cluster.devices] == ["host", *(f"pi-{i}" for i in range(1, 8))]
    host, first = cluster.devices[:2]
    assert host.host
    assert not first.host
    assert host.link.bytes_per_s > 5 * first.link.bytes_per_s
    assert first.link.bytes_per_s == pytest.approx(93.7e6 / 8)
    assert (first.link.message_s, first.link.latency_s) == (0.001, 0.002)
    assert first.memory_bytes == 700_000_000
    assert first.speed == pytest.approx(1.85e9)
    assert cluster.medium == "star"
    assert cluster.uplink == first.link


def test_optional_keys_are_all_read() -> None:
    cluster = parse_cluster(
        """
        [network]
        medium = "air"
        mbps = 50
        [[device]]
        name = "fast"
        gflops = 4
        rate_1x1 = 0.3
        rate_depthwise = 0.2
        rate_product = 0.6
        map_byte_ns = 0.7
        weight_ns = 125
        weight_1x1 = 0.5
        run_ms = 1
        endpoint_ns_per_byte = 120
        mbps = 10
        [[device]]
        name = "slow"
        gflops = 1
        """
    )
    fast, slow = cluster.devices
    assert fast.costs == RateCosts(4.0, 0.3, 125.0, 0.001, 0.5, 0.2, 0.6, 0.7)
    assert [each.costs for each in parse_cluster(dump_cluster(cluster)).devices] == [
        fast.costs,
        slow.costs,
    ]
    assert fast.link.bytes_per_s == pytest.approx(10e6 / 8)
    assert fast.link.endpoint_byte_s == pytest.approx(120e-9)
    assert slow.link.bytes_per_s == pytest.approx(50e6 / 8)
    assert slow.memory_bytes == 0
    assert not any(device.host for device in cluster.devices)
    assert cluster.uplink is None


def test_bytes_cost_cpu_at_both_ends() -> None:
    ends = "endpoint_ns_per_byte = {}"
    text = GOOD.replace("computes = true", f"computes = true\n{ends.format(120)}")
    device = parse_cluster(text).devices[1]
    assert device.link.endpoint_byte_s == pytest.approx(120e-9)
    both = parse_cluster(text.replace("memory_mb", f"{ends.format(30)}\nmemory_mb"))
    assert both.devices[1].link.endpoint_byte_s == pytest.approx(150e-9)
    assert both.devices[0].link.endpoint_byte_s == 0
    again = parse_cluster(dump_cluster(both)).devices[1]
    assert again.link.endpoint_byte_s == pytest.approx(150e-9)


def test_messages_and_tasks_cost_the_machines_at_the_ends() -> None:
    near, far = (
        f"endpoint_ms_per_message = {message}\nendpoint_ms_per_task = {task}"
        for message, task in ((0.4, 0.03), (0.8, 1.5))
    )
    text = GOOD.replace("computes = true", f"computes = true\n{near}")
    link = parse_cluster(text.replace("memory_mb", f"{far}\nmemory_mb")).devices[1].link
    assert link.near == EndpointOverhead(pytest.approx(4e-4), 0.0, pytest.approx(3e-5))
    assert link.far == EndpointOverhead(pytest.approx(8e-4), 0.0, pytest.approx(1.5e-3))
    plain = parse_cluster(GOOD).devices[1].link
    assert (plain.near, plain.far) == (EndpointOverhead(), EndpointOverhead())
    assert link.transfer_s(1) == pytest.approx(plain.transfer_s(1) + 1.2e-3)
    peers = text.replace("memory_mb", "endpoint_ms_per_peer_message = 0.0\nmemory_mb")
    peers = peers.replace("memory_mb", "endpoint_ms_per_message = 1.0\nmemory_mb")
    between = parse_cluster(dump_cluster(parse_cluster(peers))).devices[1].link.far
    assert (between.to_peers.message_s, between.message_s) == (0.0, pytest.approx(1e-3))
    again = parse_cluster(dump_cluster(parse_cluster(text))).devices[1].link
    assert (again.near.task_s, again.near.message_s) == (pytest.approx(3e-5), pytest.approx(4e-4))


def test_the_hosts_own_worker_has_an_end_of_its_own() -> None:
    near, far = (f"endpoint_ms_per_message = {each}\n" for each in (0.4, 0.8))
    text = GOOD.replace("computes = true", f"computes = true\n{near}")
    assert parse_cluster(text).devices[0].link.far == EndpointOverhead()
    text = text.replace("[network]", f"[host.worker]\n{far}[network]")
    given = parse_cluster(text)
    for cluster in (given, parse_cluster(dump_cluster(given))):
        link = cluster.devices[0].link
        assert link.near.message_s == cluster.devices[1].link.near.message_s == pytest.approx(4e-4)
        assert link.far.message_s == pytest.approx(8e-4)
        assert cluster.devices[1].link.far == EndpointOverhead()


def test_tasks_at_once() -> None:
    cluster = parse_cluster(GOOD.replace("memory_mb", "concurrency = 4\nmemory_mb"))
    assert [device.concurrency for device in cluster.devices] == [1, *[4] * 7]
    assert cluster.devices[1].speed == pytest.approx(4 * cluster.devices[0].speed)
    again = parse_cluster(dump_cluster(cluster))
    assert [device.concurrency for device in again.devices] == [1, *[4] * 7]


def test_names_of_counted_devices_are_numbered() -> None:
    text = '[network]\nmbps = 1\n[[device]]\nname = "{}"\ncount = 3\ngflops = 1'
    assert [d.name for d in parse_cluster(text.format("pi-4")).devices] == ["pi-4", "pi-5", "pi-6"]
    assert [d.name for d in parse_cluster(text.format("pi")).devices] == ["pi-1", "pi-2", "pi-3"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("mbps = 93.7", "mbps = 93.7\nmbbs = 1"), "network.mbbs is unknown"),
        (("memory_mb", "memory_gb"), "device.0.memory_gb is unknown"),
        (("[network]", "[host.worker]\ngflops = 1\n[network]"), "host.worker.gflops is unknown"),
        (("memory_mb = 700", "concurrency = 0"), "device.0.concurrency: input should be greater"),
        (("memory_mb = 700", "concurrency = 257"), "device.0.concurrency: input should be less"),
        (("memory_mb = 700", "concurrency = 1.5"), "device.0.concurrency: input should be a valid"),
        (("[host]", "[hosts]"), "hosts is unknown"),
        (("mbps = 93.7", ""), "network.mbps"),
        (("mbps = 93.7", "mbps = 0"), "network.mbps"),
        (("mbps = 93.7", "mbps = inf"), "network.mbps"),
        (('"star"', '"ring"'), "network.medium"),
        (("count = 7", "count = 0"), "device.0.count"),
        (("count = 7", "count = 100000"), "device.0.count"),
        (("gflops = 1.85\nmemory", "memory"), "either gflops or profile"),
        (("gflops = 1.85\nmemory", 'gflops = 1\nprofile = "a"\nmemory'), "either gflops or"),
        (("gflops = 1.85\nmemory", 'profile = "missing.json"\nmemory'), "missing.json"),
        (("[network]", "[network"), "not TOML"),
        (("gflops = 1.85\ncomputes", 'gflops = "fast"\ncomputes'), "host.gflops"),
        (("memory_mb = 700", "rate_depthwise = -0.2"), "device.0.rate_depthwise: input should be"),
        (("memory_mb = 700", "rate_product = 0"), "device.0.rate_product: input should be greater"),
        (("memory_mb = 700", "map_byte_ns = -1"), "device.0.map_byte_ns: input should be greater"),
        (("memory_mb = 700", "map_byte_ns = nan"), "device.0.map_byte_ns"),
        (("memory_mb = 700", 'rate_depthwise = "slow"'), "device.0.rate_depthwise"),
        (("memory_mb = 700", "rate_attention = 1"), "device.0.rate_attention is unknown"),
    ],
)
def test_bad_cluster_file_names_its_fault(change: tuple[str, str], fault: str) -> None:
    text = GOOD.replace(*change, 1)
    assert text != GOOD
    with pytest.raises(BadRequest, match=fault) as caught:
        parse_cluster(text, Path("home.toml"))
    assert "home.toml" in caught.value.cause


def test_names_are_taken_once() -> None:
    text = GOOD.replace("count = 7", "count = 1").replace("pi-1", "host")
    with pytest.raises(BadRequest, match="two devices are called 'host'"):
        parse_cluster(text)


def test_cluster_file_without_devices_is_refused() -> None:
    with pytest.raises(BadRequest, match="no device computes"):
        parse_cluster("[network]\nmbps = 1")


def test_unreadable_cluster_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="cannot be read"):
        load_cluster(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadRequest, match="cannot be read"):
        load_cluster(tmp_path / "binary.toml")


def test_a_profile_beside_the_file(tmp_path: Path) -> None:
    fit = LayerRegression(LayerRates(1e-5, 1e-10, 0, 1e-11, 0), 30, 0.05, 0.0)
    profile = DeviceProfile({"convolution": fit, "elementwise": fit}, fingerprint={"cpu": "a53"})
    (tmp_path / "pi.json").write_text(save_profile(profile))
    file = tmp_path / "cluster.toml"
    file.write_text(GOOD.replace("gflops = 1.85\nmemory", 'profile = "pi.json"\nmemory'))
    cluster = load_cluster(file)
    assert cluster.devices[1].costs == RegressionCosts(profile)
    assert 5e9 < cluster.devices[1].speed < 10e9
    names = {device.id: "pi.json" for device in cluster.devices[1:]}
    again = parse_cluster(
        dump_cluster(cluster, names), read=lambda _: save_profile(profile).encode()
    )
    assert again.devices[3].costs == cluster.devices[3].costs


def test_a_live_cluster_survives_the_file() -> None:
    cluster = parse_cluster(GOOD)
    own = replace(cluster.devices[3], link=replace(cluster.devices[3].link, bytes_per_s=5e6))
    cluster = replace(cluster, devices=(*cluster.devices[:3], own, *cluster.devices[4:]))
    again = parse_cluster(dump_cluster(cluster))
    assert len(again.devices) == len(cluster.devices)
    for one, other in zip(cluster.devices, again.devices, strict=True):
        assert (one.id, one.host, one.costs) == (other.id, other.host, other.costs)
        assert other.link.bytes_per_s == pytest.approx(one.link.bytes_per_s)
        assert other.link.message_s == pytest.approx(one.link.message_s)
        assert other.memory_bytes == one.memory_bytes


def test_odd_names_survive_the_file() -> None:
    text = "[network]\nmbps = 1\n[[device]]\nname = 'a \"b\" \\ c'\ngflops = 1"
    cluster = parse_cluster(text)
    assert cluster.devices[0].id == 'a "b" \\ c'
    assert parse_cluster(dump_cluster(cluster)).devices[0].id == cluster.devices[0].id


LIMITED = GOOD + '[device.limits]\nshapes = ["1x3x640x640"]\ndtypes = ["uint8", "float32"]\n'


def test_limits_of_devices_survive_the_file() -> None:
    cluster = parse_cluster(LIMITED + '[host.limits]\nnetworks = ["' + "0f" * 32 + '"]\n')
    host, first = cluster.devices[:2]
    assert host.limits == Limits(networks=["0f" * 32])
    assert first.limits == Limits(shapes=["1x3x640x640"], dtypes=["uint8", "float32"])
    again = parse_cluster(dump_cluster(cluster))
    assert [each.limits for each in again.devices] == [each.limits for each in cluster.devices]


def test_a_device_with_limits_is_left_out_of_divisions() -> None:
    plan = propose(STRATEGIES["lw"], small(), parse_cluster(LIMITED))
    assert set(plan.devices) == {"host"}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [('shapes = ["3x"]', "3x"), ("networks = 1", "networks"), ("boxes = []", "boxes")],
)
def test_limits_that_mean_nothing(wrong: str, named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        parse_cluster(GOOD + f"[device.limits]\n{wrong}\n")


ENGINES = """
[network]
mbps = 100

[[device]]
name = "pi-1"
count = 2
gflops = 4.0
map_byte_ns = 0.5

[[device.engine]]
name = "ncnn"
gflops = 9.0
rate_1x1 = 0.5
"""


def test_a_device_may_have_several_engines() -> None:
    found = parse_cluster(ENGINES)
    other = RateCosts(9.0, rate_1x1=0.5, engine="ncnn")
    costs = RateCosts(4.0, map_byte_ns=0.5, others=(other,))
    assert [device.costs for device in found.devices] == 2 * [costs]
    assert found.devices[0].speed == pytest.approx(9e9)
    again = parse_cluster(dump_cluster(found))
    assert [device.costs for device in again.devices] == 2 * [costs]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("gflops = 9.0", ""), r"device.0.engine.0.gflops"),
        (("gflops = 9.0", "gflops = 0"), r"device.0.engine.0.gflops"),
        (("rate_1x1", "rate_9x9"), "rate_9x9"),
        (('name = "ncnn"', ""), r"device.0.engine.0.name"),
        (("gflops = 4.0", 'profile = "pi.json"'), r"device.0.engine goes with gflops"),
    ],
)
def test_faults_of_engines_are_named(change: tuple[str, str], fault: str) -> None:
    with pytest.raises(BadRequest, match=fault):
        parse_cluster(ENGINES.replace(*change))
