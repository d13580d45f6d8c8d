import json
import tomllib

import pytest

from benchmarks.lab.bench import fitting_scale
from benchmarks.messages import line, side_ms
from benchmarks.report import ROOT
from coordinator.costs.rates import RateCosts
from imbrex.kinds.clusters import cluster_of
from imbrex.kinds.presets import FOLDER, Preset, load_kind, names
from imbrex.kinds.software import SERVER_PYTHON_MS
from protos.errors import BadRequest, NotFound

LAB = ROOT / "benchmarks" / "lab"
FOUR_GFLOPS, SECURED = LAB / "four-gflops.toml", LAB / "pi4-gbe-tls.toml"
RESULTS = ROOT / "benchmarks" / "results"
MESSAGES, HANDOVER = RESULTS / "messages.json", RESULTS / "handover.json"


def test_the_presets_of_the_papers_and_of_what_people_own_are_there():
    of_papers = {"pi3-1ghz", "pi3-500mhz"}
    of_people = {"pi3b-ort", "pi3bplus", "pi4-gbe", "pi4-wifi", "pi5-gbe", "pi5-wifi"}
    assert set(names()) == of_papers | of_people | {"n100", "orangepi5"}


@pytest.mark.parametrize("name", ["n100", "orangepi5", "pi3b-ort", "pi3bplus"])
def test_unmeasured_rates_are_marked_as_estimated(name):
    head, *lines = (FOLDER / f"{name}.toml").read_text().splitlines()
    assert "Estimated" in head
    rates = [each for each in lines if each.startswith(("gflops", "map_byte_ns"))]
    assert all("# estimated" in each for each in rates)


def test_presets_of_one_device_differ_in_what_connects_them():
    network = {"mbps", "latency_ms", "medium"}
    for kind in ("pi4", "pi5"):
        wired, wireless = (load_kind(f"{kind}-{how}") for how in ("gbe", "wifi"))
        changed = {key: getattr(wireless, key) for key in network}
        assert wired.model_copy(update=changed) == wireless
        assert wireless.medium == "air"


def test_estimates_are_the_multiples_that_they_say():
    rates = {name: load_kind(name) for name in names()}

    def ratios(name, of):
        one, other = rates[name], rates[of]
        return one.gflops / other.gflops, other.map_byte_ns / one.map_byte_ns

    assert ratios("pi3bplus", "pi4-gbe") == pytest.approx((0.5, 0.5), rel=0.01)
    assert ratios("pi3b-ort", "pi3bplus") == pytest.approx((1.2 / 1.4,) * 2, rel=0.01)
    assert ratios("orangepi5", "pi5-gbe") == pytest.approx((1.0, 12.4 / 6.0), rel=0.01)
    assert ratios("n100", "pi5-gbe") == pytest.approx((1.2, 8.1 / 6.0), rel=0.01)


@pytest.mark.parametrize("name", names())
def test_every_preset_says_where_its_rates_come_from(name):
    lines = (FOLDER / f"{name}.toml").read_text().splitlines()
    assert all(
        "#" in line
        for line in lines
        if line.startswith(("gflops", "map_byte", "mbps", "software", "latency"))
    )
    assert load_kind(name).gflops > 0


def test_four_gflops_are_all_that_the_targets_second_column_changes():
    fast, slow = (load_kind(each) for each in (str(FOUR_GFLOPS), "pi3-1ghz"))
    assert fast == slow.model_copy(update={"gflops": 4.0})


def test_a_cluster_with_an_authority_differs_in_what_messages_cost_alone():
    plain, secured = (load_kind(each) for each in ("pi4-gbe", str(SECURED)))
    costs = ("message_ms", "byte_ns", "peer_message_ms", "peer_byte_ns")
    assert all(getattr(plain, cost) < getattr(secured, cost) for cost in costs)
    other = {cost: getattr(secured, cost) for cost in costs}
    assert plain.model_copy(update={**other, "tls": True}) == secured


@pytest.mark.parametrize("file", [*(FOLDER / f"{name}.toml" for name in names()), SECURED])
def test_software_costs_are_the_measured_ones_times_a_factor(file):
    told = tomllib.loads(file.read_text())
    times, way = told["software"], "_tls" if told.get("tls") else ""
    messages, handover = (json.loads(file.read_text()) for file in (MESSAGES, HANDOVER))
    preset = load_kind(str(file))

    def slower(document):
        return times * SERVER_PYTHON_MS / document["provenance"]["python_ms"]

    def charged(sizes, sides_ms, message_ms, byte_ns):
        assert line(sizes, sides_ms) == pytest.approx((message_ms, byte_ns), rel=0.002)

    transports = messages["transports"]
    sides_ms = [slower(messages) * each for each in side_ms(transports[f"host{way}"])]
    charged(transports["host"], sides_ms, preset.message_ms, preset.byte_ns)
    # Between workers: the time from kernel to kernel, and what TLS adds to a message of the host.
    plain, own = (side_ms(transports[name]) for name in ("host", f"host{way}"))
    sides_ms = [
        slower(handover) * size["end_to_full_ms"] / 2 + slower(messages) * (more - less)
        for size, less, more in zip(handover["sizes"], plain, own, strict=True)
    ]
    charged(handover["sizes"], sides_ms, preset.peer_message_ms, preset.peer_byte_ns)
    starting_ms = sorted(each["full_to_start_ms"] for each in handover["sizes"])[1]
    assert preset.task_ms == pytest.approx(slower(handover) * starting_ms, abs=1e-3)
    set_up_ms = handover["set_up_ms"] + handover["take_in_ms"]
    assert preset.set_up_ms == pytest.approx(slower(handover) * set_up_ms, abs=1e-3)
    describe_ms = slower(handover) * handover["describe_ms"]
    assert preset.describe_ms == pytest.approx(describe_ms, abs=1e-3)


def test_a_scale_changes_no_ratio():
    preset = load_kind("pi3-1ghz")
    twice = preset.scaled(2)
    assert twice.gflops / twice.mbps == preset.gflops / preset.mbps
    assert twice.message_ms * twice.gflops == preset.message_ms * preset.gflops
    assert twice.byte_ns * twice.mbps == preset.byte_ns * preset.mbps
    charged = preset.model_copy(update={"map_byte_ns": 0.5, "rate_1x1": 0.8}).scaled(2)
    assert (charged.map_byte_ns, charged.rate_1x1) == (0.25, 0.8)


@pytest.mark.parametrize("name", names())
def test_eight_devices_fit_on_less_than_a_core(name):
    preset = load_kind(name)
    scale = fitting_scale(preset, 8, core_gflops=110)
    assert 8 * preset.scaled(scale).gflops / 110 <= 0.6
    assert preset.scaled(scale).mbps <= 125


def test_an_unknown_preset_is_named_with_those_that_are_known():
    with pytest.raises(NotFound) as caught:
        load_kind("pi9")
    assert "pi9" in caught.value.cause
    assert "pi3-1ghz" in caught.value.cure


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("gflops = 1\nmbps = 1\nmessage_ms = 1\nbits = 3", "bits"),
        ("gflops = 0\nmbps = 1\nmessage_ms = 1", "gflops"),
        ("mbps = 1\nmessage_ms = 1", "gflops"),
        ("gflops = 1\nmbps = 1\nmessage_ms = 1\nmedium = 'token ring'", "medium"),
        ("gflops = 1\nmbps = 1\nmessage_ms = 1\nrate_1x1 = -1", "rate_1x1"),
        ("gflops = 1\nmbps = 1\nmessage_ms = 1\nrate_product = 'slow'", "rate_product"),
        ("gflops = 1\nmbps = 1\nmessage_ms = 1\nmap_byte_ns = -1", "map_byte_ns"),
        ("gflops = 1\nmbps = 1\nmessage_ms = 1\nrate_attention = 1", "rate_attention"),
        ("gflops", "mine.toml"),
    ],
)
def test_a_wrong_file_is_refused_with_its_key(tmp_path, text, named):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(BadRequest) as caught:
        load_kind(str(file))
    assert named in caught.value.cause


def test_a_file_of_ones_own_is_a_preset(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("gflops = 3\nmbps = 50\nmessage_ms = 2\nmedium = 'air'")
    preset = load_kind(str(file))
    assert preset.medium == "air"
    assert cluster_of(preset, 2).devices[1].costs == RateCosts(3.0)


def test_rates_of_layers_are_those_of_the_cluster():
    rates = {"rate_1x1": 0.9, "rate_depthwise": 0.1, "rate_product": 0.5, "map_byte_ns": 0.2}
    preset = Preset(gflops=3, mbps=50, message_ms=2, **rates)
    costs = [device.costs for device in cluster_of(preset, 2).devices]
    assert costs == 2 * [RateCosts(3.0, **rates)]
