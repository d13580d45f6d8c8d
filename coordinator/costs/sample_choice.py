"""Which samples to measure on a device, in bounded time.

    sampling = Sampling(budget_s=60)
    while (sample := sampling.next()) is not None:
        sampling.record(sample, measure(sample), spent_s)
    profile = sampling.profile(fingerprint)

Pure: the caller measures and reads the clock. The first samples are tiny. As they show how fast the
device is, later ones grow until one run takes about `_TARGET_S` or, on a slow device, until they
have the size of real tiles, whose weights exceed any cache. So a slow device is not blocked for
long, and a fast one is not measured on noise.
"""

import random
import statistics
from collections.abc import Mapping

from coordinator.costs.regression import DeviceProfile, fit
from coordinator.costs.samples import Sample, draw

# Samples of each kind if time allows; convolutions are most of any network.
COUNTS: Mapping[str, int] = {
    "convolution": 36,
    "pointwise": 24,
    "grouped": 8,
    "depthwise": 10,
    "pooling": 12,
    "fully_connected": 10,
    "elementwise": 10,
    "normalisation": 8,
    "concat": 8,
    "resize": 8,
    "product": 16,
    "softmax": 8,
    "layer_norm": 8,
    "block": 16,
    "layer": 10,
}
_TARGET_S = 0.04
_FIRST_FLOP = 2e7
# An eighth of a VGG-16 layer, and the time that a slow device may take for such a sample.
_TILE_FLOP = 3e8
_MOST_S = 0.25
# Range of a kind's samples in FLOPs. Blocks have the size of real tiles, and fully connected layers
# exceed a cache, because those take the time.
_SPREADS = {"block": 10.0, "layer": 30.0, "fully_connected": 3.0}
_SPREAD = 300.0
# Layers that move data reach few FLOPs per second: they get this share of a convolution's.
_LIGHT_SHARES = {"fully_connected": 0.03} | dict.fromkeys(
    (
        *("depthwise", "pooling", "elementwise", "normalisation", "concat", "resize"),
        *("softmax", "layer_norm"),
    ),
    0.01,
)
# After this many rounds sampling stops if fused blocks are predicted this well.
_ENOUGH_ROUNDS = 11
_ENOUGH_MAPE = 0.05


class Sampling:
    """The samples of one device, ordered so that every kind has its share at any time."""

    def __init__(self, budget_s: float = 60.0, seed: int = 0) -> None:
        self.budget_s = budget_s
        self.spent_s = 0.0
        self.measured: list[tuple[Sample, Mapping[str, float]]] = []
        self._rng = random.Random(seed)  # noqa: S311 - samples, not secrets
        # Every kind as often as `COUNTS` says, evenly spread.
        places = [(k + 0.5) / count for count in COUNTS.values() for k in range(count)]
        kinds = [kind for kind, count in COUNTS.items() for _ in range(count)]
        self._queue = [kind for _, kind in sorted(zip(places, kinds, strict=True))]
        self._asked = 0
        self._enough = False

    @property
    def progress(self) -> float:
        """Progress by count or by time, whichever is further, in [0, 1]."""
        if self._enough:
            return 1.0
        done = max(self._asked / len(self._queue), self.spent_s / self.budget_s)
        return min(1.0, done)

    def next(self) -> Sample | None:
        """The next sample to measure; None if there are enough or the time is used up."""
        if self._enough or self._asked >= len(self._queue) or self.spent_s >= self.budget_s:
            return None
        kind = self._queue[self._asked]
        self._asked += 1
        top = self._top_flop() * _LIGHT_SHARES.get(kind, 1.0)
        spread = _SPREADS.get(kind, _SPREAD)
        return draw(kind, self._rng, top * spread ** -self._rng.random())

    def record(self, sample: Sample, seconds: Mapping[str, float], spent_s: float) -> None:
        """Records the seconds of one run by each engine that could run the sample, and what
        measuring took in total.
        """
        self.spent_s += spent_s
        runs = {engine: engine_s for engine, engine_s in seconds.items() if engine_s > 0}
        if not runs:
            return
        self.measured.append((sample, runs))
        rounds, more = divmod(len(self.measured), len(COUNTS))
        if not more and rounds >= _ENOUGH_ROUNDS:
            self._enough = 0 < fit(self.measured, {}).block_mape < _ENOUGH_MAPE

    def profile(self, fingerprint: Mapping[str, str]) -> DeviceProfile:
        """The device's profile from all measurements."""
        return fit(self.measured, fingerprint)

    def _top_flop(self) -> float:
        """FLOPs of the largest sample: what the device computes in `_TARGET_S`, or a real tile. It
        is approached in steps of at most 8, so that one wrong measurement does little harm.
        """
        rates = [
            sample.flop / min(seconds.values())
            for sample, seconds in self.measured
            if sample.kind in ("convolution", "pointwise", "block")
        ]
        if not rates:
            return _FIRST_FLOP
        largest, rate = max(sample.flop for sample, _ in self.measured), statistics.median(rates)
        wanted = max(rate * _TARGET_S, min(_TILE_FLOP, rate * _MOST_S))
        return max(_FIRST_FLOP, min(wanted, 8.0 * largest))
