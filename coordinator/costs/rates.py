"""Costs from a few rates, given by a cluster file or reported by a new device."""

from dataclasses import dataclass

from coordinator.costs.affine import NEVER, Costs, EngineCosts, LayerRates, is_too_large
from models.operators.work import NodeWork
from protos.wire.facts import ONNXRUNTIME

_WEIGHT_ITEM_BYTES = 4

# A common layer by which devices are ranked and shown: 3x3, 128 channels, a 28x56 map.
YARDSTICK = NodeWork(
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


@dataclass(frozen=True, slots=True)
class RateCosts(Costs, EngineCosts):
    """Seconds = FLOPs / rate, plus costs per byte of maps and per weight, of one engine; and the
    device's `others`, which are as fast as theirs say.

    `rate_1x1`, `rate_depthwise` and `rate_product` are the shares of `gflops` that 1x1 and
    depthwise convolutions and matrix products reach. `map_byte_ns` nanoseconds are spent per byte
    of maps that a layer reads or writes, but for those that are fused with a convolution.
    `weight_ns` nanoseconds are spent per weight and inference (by a runtime that transforms kernels
    every time), of which layers without a window (1x1 convolutions, fully connected layers) spend
    the share `weight_1x1`. Each run of a program takes `run_s` seconds more.
    """

    gflops: float
    rate_1x1: float = 1.0
    weight_ns: float = 0.0
    run_s: float = 0.0
    weight_1x1: float = 1.0
    rate_depthwise: float = 1.0
    rate_product: float = 1.0
    map_byte_ns: float = 0.0
    engine: str = ONNXRUNTIME
    others: "tuple[RateCosts, ...]" = ()

    def __post_init__(self) -> None:
        assert self.gflops > 0, "a device computes"
        rates = (self.rate_1x1, self.rate_depthwise, self.rate_product)
        assert min(rates) > 0, "every layer takes finite time"

    @property
    def engines(self) -> tuple[EngineCosts, ...]:
        """This engine and the device's others."""
        return (self, *self.others)

    @property
    def task_s(self) -> float:
        """Fixed seconds of any run of a program."""
        return self.run_s

    def layer_rates(self, work: NodeWork) -> LayerRates:
        """Rates of a node; equal for all of its tiles with the same channels."""
        if work.pace:
            return LayerRates(flop_s=work.pace * 1e-9 / self.gflops)
        if is_too_large(work, self.engine):
            return NEVER
        weight_ns = self.weight_ns * (self.weight_1x1 if work.taps == 1 else 1.0)
        byte_s = 0.0 if work.is_fused else self.map_byte_ns * 1e-9
        share = 1.0
        if work.layer_type == "convolution":
            if work.taps == 1:
                share = self.rate_1x1
            elif work.is_depthwise:
                share = self.rate_depthwise
        elif work.is_product:
            share = self.rate_product
        return LayerRates(
            flop_s=1e-9 / (self.gflops * share),
            input_byte_s=byte_s,
            output_byte_s=byte_s,
            weight_byte_s=weight_ns * 1e-9 / _WEIGHT_ITEM_BYTES,
        )


def flop_per_s(costs: Costs) -> float:
    """A device's rate on a common layer."""
    return YARDSTICK.flop / costs.block_s([YARDSTICK])
