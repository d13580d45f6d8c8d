"""AOFL's heterogeneous cases (Table 2, Figure 12), VGG-16, with its 77.5 ms per transfer.

One core at 1 GHz does 1.85 GFLOP/s. Published: the runtime of AOFL beside eight equal tiles.
"""

import pytest

from coordinator.plans.named import strategy
from tests.planning.support import PUBLISHED, cluster, real

GHZ = 1.85


def plans(*ghz: float):
    some = cluster(*(each * GHZ for each in ghz), link=PUBLISHED, host=False)
    network = real("vgg16-256-conv")
    return strategy("aofl")(network, some), strategy("ofl")(network, some)


def gain(aofl, ofl) -> float:
    """Percent of runtime that AOFL saves."""
    return 100 * (1 - aofl.predicted_latency_s / ofl.predicted_latency_s)


def test_case_1_1_the_two_fast_ones_carry_it() -> None:
    aofl, ofl = plans(1, 1, *[0.4] * 6)
    assert gain(aofl, ofl) == pytest.approx(15.8, abs=3)
    shares = {name: 0 for name in aofl.devices}
    for block in aofl.blocks:
        for tile in block.tiles:
            shares[tile.device] += tile.flop
    slow = max(share for name, share in shares.items() if name not in ("d0", "d1"))
    assert min(shares["d0"], shares["d1"]) > 2.5 * slow
    assert set(aofl.blocks[-1].devices) == {"d0", "d1"}


def test_case_1_2_everything_goes_to_the_four_core_device() -> None:
    aofl, _ = plans(4, *[0.4] * 7)
    assert aofl.devices == ("d0",)
    assert len(aofl.blocks) == 1


def test_case_2_1_all_but_the_two_slowest() -> None:
    aofl, ofl = plans(1, 1, 0.8, 0.8, 0.6, 0.6, 0.4, 0.4)
    assert [each.device for each in aofl.unused] == ["d6", "d7"]
    assert gain(aofl, ofl) >= 18.7


def test_case_2_2_all_eight_with_unequal_tiles() -> None:
    aofl, ofl = plans(1, 1, *[0.8] * 4, 0.6, 0.6)
    assert not aofl.unused
    assert gain(aofl, ofl) == pytest.approx(12.3, abs=3)
    first = {tile.device: tile.flop for tile in aofl.blocks[0].tiles}
    assert first["d7"] < first["d0"]


def test_the_published_speed_ups_of_equal_devices() -> None:
    for count, published in ((2, 1.6), (4, 2.6), (8, 3.2)):
        aofl, _ = plans(*[1.0] * count)
        speedup = aofl.single_device_latency_s / aofl.predicted_latency_s
        assert speedup == pytest.approx(published, rel=0.15)
    assert aofl.single_device_latency_s == pytest.approx(21.7, rel=0.02)
