"""Costs from a rate: what a cluster file says of a device, and the prior for a new one."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.costs.affine import AffineCosts, Costs, LayerRates
from models.work import Work

_WEIGHT_ITEM_BYTES = 4

# FLOPs per clock and core that onnxruntime or NNPACK sustains on 3x3 convolutions. A Pi 3's
# Cortex-A53 does 1.85 [AOFL's testbed: VGG-16 in 21.7 s at 1 GHz]; out-of-order Arm cores about
# twice that; x86-64 with AVX2 an order of magnitude more.
_FLOP_PER_CLOCK = {"aarch64": 2.5, "armv7l": 1.85, "x86_64": 24.0}
_UNKNOWN_MACHINE = 1.85
# A common layer, by which devices are ranked and shown: 3x3, 128 channels, a 28x56 map.
_YARDSTICK = Work(
    "convolution",
    flop=462_422_016,
    input_bytes=802_816,
    output_bytes=802_816,
    weight_bytes=590_336,
    input_channels=128,
    output_channels=128,
    output_pixels=1568,
    taps=9,
)
# What further cores add to the first, on convolutions of the size of a tile.
_CORE_EFFICIENCY = 0.85


@dataclass(frozen=True, slots=True)
class RateCosts(AffineCosts):
    """Seconds = FLOPs / rate, plus a cost per weight and inference.

    `rate_1x1` is the share of `gflops` that 1x1 convolutions reach; `weight_ns` nanoseconds are
    spent per weight and inference (a runtime that transforms kernels anew each time), and the
    share `weight_1x1` of that where there is no window (1x1 convolutions, fully connected layers);
    `run_s` seconds per run of a program.
    """

    gflops: float
    rate_1x1: float = 1.0
    weight_ns: float = 0.0
    run_s: float = 0.0
    weight_1x1: float = 1.0

    def __post_init__(self) -> None:
        assert self.gflops > 0, "a device computes"
        assert self.rate_1x1 > 0, "1x1 convolutions take finite time"

    @property
    def task_s(self) -> float:
        """Seconds that any run of a program costs, whatever it computes."""
        return self.run_s

    def layer_rates(self, work: Work) -> LayerRates:
        """Rates of a node; equal for all tiles of it that keep its channels."""
        pointwise = work.layer_type == "convolution" and work.taps == 1
        gflops = self.gflops * (self.rate_1x1 if pointwise else 1.0)
        weight_ns = self.weight_ns * (self.weight_1x1 if work.taps == 1 else 1.0)
        return LayerRates(flop_s=1e-9 / gflops, weight_byte_s=weight_ns * 1e-9 / _WEIGHT_ITEM_BYTES)


def prior_gflops(
    mhz: float, cores: int, *, machine: str = "", pace: float = 1.0, threads: int | None = None
) -> float:
    """What a device that nobody has measured probably does: frequency x cores, in GFLOP/s.

    `threads` are the intra-op threads of one task (None: all cores), `pace` the share of a core
    that the worker may take, 1 for no limit. An unknown frequency counts as 1 GHz.
    """
    used = max(1, min(cores, threads) if threads else cores)
    effective = 1.0 + _CORE_EFFICIENCY * (used - 1)
    if pace < 1.0:
        effective = pace
    per_clock = _FLOP_PER_CLOCK.get(machine, _UNKNOWN_MACHINE)
    return (mhz if mhz > 0 else 1000.0) * 1e-3 * per_clock * effective


def prior_costs(
    mhz: float, cores: int, *, machine: str = "", pace: float = 1.0, threads: int | None = None
) -> RateCosts:
    """Costs of a device that nobody has measured, from frequency x cores."""
    return RateCosts(prior_gflops(mhz, cores, machine=machine, pace=pace, threads=threads))


def flop_per_s(costs: Costs) -> float:
    """A device's rate on a common layer."""
    return _YARDSTICK.flop / costs.block_s([_YARDSTICK])
