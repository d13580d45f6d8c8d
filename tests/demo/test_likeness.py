"""What emulated devices are told, so that they take as long as a preset says."""

import pytest

from imbrex.demo.emulation.rate import Core
from imbrex.demo.likeness import scale_of, told
from imbrex.kinds.presets import KINDS, load_kind
from imbrex.kinds.software import SERVER


@pytest.mark.parametrize("name", KINDS)
def test_a_scale_changes_how_long_everything_takes_and_no_ratio(name):
    preset = load_kind(KINDS[name].preset).preset
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
    preset = load_kind(KINDS[name].preset).preset
    scale = scale_of(preset, devices, core_gflops=100.0)
    assert devices * preset.gflops * scale <= 40.0
    assert preset.message_ms / scale >= 5.0
    twice = 2 * scale
    assert twice > 1 or devices * preset.gflops * twice > 40 or preset.message_ms / twice < 5.0
