"""What emulated devices are told, so that they take as long as a preset says."""

import pytest

from imbrex.demo.duration import FEWER, MOST_S, USUAL, Length
from imbrex.demo.emulation.rate import Core
from imbrex.demo.likeness import scales, suited, told
from imbrex.kinds.presets import KINDS, load_kind
from imbrex.kinds.software import SERVER


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


def length(alone_s, workers=4, profile=True, curve=False):
    return Length(alone_s, workers, profile, curve)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("curve", [False, True])
@pytest.mark.parametrize("gflop", [0.01, 1, 31, 136])
def test_a_demo_takes_two_minutes_at_most(name, workers, curve, gflop):
    preset = load_kind(KINDS[name].preset)
    wanted = length(gflop / preset.gflops, workers, curve=curve)
    scale, requests = suited(preset, 100.0, wanted)
    possible = scales(preset, workers, 100.0)
    assert scale in possible
    if wanted.expected_s(possible[-1], FEWER[-1]) <= MOST_S:
        assert wanted.expected_s(scale, requests) <= MOST_S
    # A small network is asked as often as usual, and leaves room to other programs.
    if gflop == 0.01:
        assert (scale, requests) == (possible[0], USUAL)
    # Of the catalogue, VGG-16 is the largest network.
    if gflop <= 31 and not curve:
        assert wanted.expected_s(scale, requests) <= MOST_S


def test_longer_demos_are_expected_to_take_longer():
    usual = length(1.0).expected_s(0.25, USUAL)
    assert length(2.0).expected_s(0.25, USUAL) > usual
    assert length(1.0).expected_s(0.125, USUAL) > usual
    assert length(1.0, curve=True).expected_s(0.25, USUAL) > usual
    assert length(1.0, profile=False).expected_s(0.25, USUAL) == usual - 30.0
    assert length(1.0).expected_s(0.25, FEWER[-1]) < usual
