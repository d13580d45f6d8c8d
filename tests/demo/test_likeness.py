"""What emulated devices are told, so that they take as long as a preset says."""

from dataclasses import replace
from functools import cache

import pytest

from coordinator.measuring.baseline import AT_MOST_S
from imbrex.demo.duration import FEWER, MOST_S, USUAL, Length, usual_s
from imbrex.demo.emulation.rate import Core
from imbrex.demo.likeness import scales, suited, told
from imbrex.demo.run import Demo, length_of
from imbrex.kinds.presets import KINDS, load_kind
from imbrex.kinds.software import SERVER
from models.catalogue.catalogue import load
from models.catalogue.loading import network_of


@pytest.mark.parametrize("name", KINDS)
def test_a_scale_changes_how_long_everything_takes_and_no_ratio(name):
    preset = load_kind(KINDS[name].preset)
    slow, slower = (told(name, preset, scale, Core(100.0, 1e-3)) for scale in (0.25, 0.125))
    for each in (slow, slower):
        assert each.worker.pace * 100.0 == pytest.approx(preset.gflops * each.scale, rel=0.01)
        own_ms = each.worker.message_ms + SERVER.message_ms
        assert own_ms * each.scale == pytest.approx(preset.message_ms, rel=1e-3)
        assert each.worker.task_ms * each.scale == pytest.approx(preset.task_ms)
        # A byte crosses one wire, on its way from the host and between workers alike.
        wire_ns = 8e3 / preset.mbps
        host_ns = (each.host.byte_ns + each.worker.byte_ns) * each.scale
        assert host_ns == pytest.approx(wire_ns + 2 * preset.byte_ns, rel=1e-3)
        # Both ends between workers are charged alike.
        assert 2 * each.worker.peer_byte_ns * each.scale == pytest.approx(
            wire_ns + 2 * preset.peer_byte_ns, rel=1e-3
        )
        describing_ms = each.host.describe_ms + SERVER.describe_ms
        assert describing_ms * each.scale == pytest.approx(preset.describe_ms, rel=1e-3)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("devices", [1, 4, 16])
def test_a_scale_leaves_room_for_other_programs(name, devices):
    preset = load_kind(KINDS[name].preset)
    scale, *others = scales(preset, devices, core_gflops=100.0)
    assert devices * preset.gflops * scale <= 40.0
    assert preset.message_ms / scale >= 5.0
    twice = 2 * scale
    assert twice > 1 or devices * preset.gflops * twice > 40 or preset.message_ms / twice < 5.0
    # Those that leave less room still leave a fifth of a core.
    assert others == [scale * 2.0**power for power in range(1, len(others) + 1)]
    assert max((devices * preset.gflops * each for each in others), default=0) <= 80.0
    assert max((scale, *others)) <= 1.0


@cache
def network(name):
    return network_of(load(name))


def expected(demo, preset):
    return length_of(demo, preset, network(demo.model))


def test_a_device_that_computes_two_halves_is_timed_with_these_too():
    found = {
        model: expected(Demo(None, model, 4, "auto", "", True, False, None), load_kind("pi4-gbe"))
        for model in ("vgg16", "resnet18")
    }
    assert 0.6 < found["vgg16"].halves_s / found["vgg16"].alone_s < 0.75
    assert found["resnet18"].halves_s == 0
    whole = replace(found["vgg16"], halves_s=0.0)
    assert found["vgg16"].expected_s(1.0, USUAL) > whole.expected_s(1.0, USUAL)
    slow, nothing_timed = 1 / 100, replace(found["vgg16"], alone_s=0.0, halves_s=0.0)
    timed_s = found["vgg16"].expected_s(slow, USUAL) - nothing_timed.expected_s(slow, USUAL)
    runs_s = (4 * found["vgg16"].alone_s + 2 * found["vgg16"].halves_s) / slow
    assert timed_s == pytest.approx(3 * AT_MOST_S + runs_s)


def length(alone_s, workers=4, profile=True, curve=False):
    return Length(alone_s, usual_s(alone_s, workers), workers, profile, curve)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("curve", [False, True])
@pytest.mark.parametrize("gflop", [0.01, 1, 31, 136])
def test_a_demo_takes_two_minutes_at_most_or_says_so(name, workers, curve, gflop):
    preset = load_kind(KINDS[name].preset)
    wanted = length(gflop / preset.gflops, workers, curve=curve)
    scale, requests = suited(preset, 100.0, wanted)
    possible = scales(preset, workers, 100.0)
    assert scale in possible
    is_short = wanted.expected_s(scale, requests) <= MOST_S
    assert is_short is (wanted.expected_s(possible[-1], FEWER[-1]) <= MOST_S)
    assert is_short is ("fewer --workers" not in wanted.told(scale, requests))
    # A small network is asked as often as usual, and leaves room to other programs.
    if gflop == 0.01:
        assert (scale, requests) == (possible[0], USUAL)


@pytest.mark.parametrize("curve", [False, True])
@pytest.mark.parametrize("strategy", ["auto", "aofl"])
@pytest.mark.parametrize("model", ["vgg16", "unet", "yolov2"])
def test_the_largest_networks_take_two_minutes_at_most_or_say_so(model, strategy, curve):
    demo = Demo(None, model, 4, strategy, "", True, False, None, curve=curve)
    for kind in KINDS.values():
        preset = load_kind(kind.preset)
        wanted = expected(demo, preset)
        chosen = suited(preset, 100.0, wanted)
        is_short = wanted.expected_s(*chosen) <= MOST_S
        assert is_short is ("fewer --workers" not in wanted.told(*chosen))
        # With a curve, VGG-16's 553 MB of weights are too many.
        assert is_short or (curve and model == "vgg16")


def test_a_strategy_that_is_slower_than_one_device_takes_longer():
    demo, preset = Demo(None, "resnet50", 4, "lw", "", True, False, None), load_kind("pi5-gbe")
    wanted = expected(demo, preset)
    assert wanted.together_s > wanted.alone_s


def test_longer_demos_are_expected_to_take_longer():
    usual = length(1.0).expected_s(0.25, USUAL)
    assert length(2.0).expected_s(0.25, USUAL) > usual
    assert length(1.0).expected_s(0.125, USUAL) > usual
    assert length(1.0, curve=True).expected_s(0.25, USUAL) > usual
    assert length(1.0, profile=False).expected_s(0.25, USUAL) == usual - 30.0
    assert length(1.0).expected_s(0.25, FEWER[-1]) < usual
