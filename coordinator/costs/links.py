"""Links fitted to transfers: a fixed cost per message and a cost per byte [AOFL, section 4.2].

What the machines at the ends are said to need is taken from what was measured as a whole; the
wire is the rest.

Starts from a prior (the advertised or configured Mbps) and moves to what probes and transfers
show. The latest probe counts as long as there is no newer one: requests may show messages of one
size alone. Robust: medians of slopes and of intercepts (Theil-Sen), so that a few transfers that
waited behind others change nothing; a slope counts by how far apart its sizes are, since small
messages fit into buffers and tell nothing of a rate.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coordinator.costs.cluster import Link

# Pairwise slopes are quadratic in this; the newest transfers are kept.
MOST_OBSERVATIONS = 128
_LEAST_OBSERVATIONS = 5
# Sizes closer than this say nothing of the cost per byte.
_LEAST_SPREAD_BYTES = 20_000
_SMALL_BYTES = 4096
# The host's own worker over loopback (measured: gRPC streams, 0.6 to 1.1 GB/s and 0.4 ms), as
# cluster files have it; of a live one the ends are known too.
LOOPBACK = Link(bytes_per_s=0.6e9, message_s=0.0004)
LIVE_LOOPBACK = Link(bytes_per_s=6e9)
DEFAULT_MBPS = 50.0
# Faster than any home's network (80 Gbit/s): what a fit of noise is held to.
LEAST_BYTE_S = 1e-10


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message: its payload and the seconds from sending to arrival."""

    size_bytes: int
    seconds: float


def prior_link(mbps: float, message_ms: float = 1.0, latency_ms: float = 2.0) -> Link:
    """A link with assumed costs; if `mbps` is 0 or less, its bandwidth is assumed as well."""
    return Link(
        bytes_per_s=(mbps if mbps > 0 else DEFAULT_MBPS) * 1e6 / 8,
        message_s=message_ms * 1e-3,
        latency_s=latency_ms * 1e-3,
    )


@dataclass(frozen=True, slots=True)
class LinkEstimate:
    """What is known of a link: its prior, its latest transfers, and its latest probe."""

    prior: Link
    transfers: tuple[Transfer, ...] = ()
    probe: tuple[Transfer, ...] = ()

    def observed(self, size_bytes: int, seconds: float) -> "LinkEstimate":
        """The estimate after one more transfer; the oldest are dropped."""
        if size_bytes < 0 or seconds <= 0:
            return self
        kept = (*self.transfers, Transfer(size_bytes, seconds))[-MOST_OBSERVATIONS:]
        return replace(self, transfers=kept)

    def probed(self, probe: Sequence[Transfer]) -> "LinkEstimate":
        """The estimate after a probe, which replaces the previous one."""
        return replace(self, probe=tuple(transfer for transfer in probe if transfer.seconds > 0))

    @property
    def link(self) -> Link:
        """The best estimate; parts that were not measured are the prior's."""
        known = (*self.probe, *self.transfers)
        if len(known) < _LEAST_OBSERVATIONS:
            return self.prior
        fitted = fit_line(known)
        if fitted is None:
            return self._fixed_only(known)
        fixed_s, byte_s = fitted
        # Disturbed measurements of the device's part must not leave zero time for the wire.
        most = max(0.0, byte_s - self.prior.near.byte_s) / 2
        far = replace(self.prior.far, byte_s=min(self.prior.far.byte_s, most))
        return divided(replace(self.prior, far=far), fixed_s, byte_s)

    def _fixed_only(self, known: Sequence[Transfer]) -> Link:
        """The link if all transfers have about one size: exact for that size. The slope is the
        prior's if the messages are small, otherwise all time is attributed in proportion.
        """
        size = statistics.median(transfer.size_bytes for transfer in known)
        seconds = statistics.median(transfer.seconds for transfer in known)
        if size <= _SMALL_BYTES:
            return divided(
                self.prior, max(0.0, seconds - size * self.prior.byte_s), self.prior.byte_s
            )
        fixed_s = min(self.prior.fixed_s, seconds / 2)
        return divided(self.prior, fixed_s, (seconds - fixed_s) / size)


def divided(prior: Link, fixed_s: float, byte_s: float) -> Link:
    """A link with these costs per message and byte. Its ends get what the prior says, or everything
    if that is less; of the rest per message, the wire is occupied for the prior's share.
    """
    ends_s = prior.near.message_s + prior.far.message_s
    per_message = min(1.0, fixed_s / ends_s) if ends_s else 0.0
    per_byte = min(1.0, byte_s / prior.endpoint_byte_s) if prior.endpoint_byte_s else 0.0
    near, far = (
        replace(end, message_s=end.message_s * per_message, byte_s=end.byte_s * per_byte)
        for end in (prior.near, prior.far)
    )
    wire_s = prior.message_s + prior.latency_s
    share = prior.message_s / wire_s if wire_s else 0.0
    # Rounding must not make anything negative, which cluster files reject.
    rest_s = max(0.0, fixed_s - ends_s * per_message)
    rest_byte_s = byte_s - prior.endpoint_byte_s * per_byte
    return Link(
        bytes_per_s=1.0 / max(rest_byte_s, LEAST_BYTE_S),
        message_s=rest_s * share,
        latency_s=rest_s * (1.0 - share),
        near=near,
        far=far,
    )


def fit_line(transfers: Sequence[Transfer]) -> tuple[float, float] | None:
    """(fixed seconds, seconds per byte) as medians of pairwise slopes, weighted by the distance of
    their sizes, and of intercepts; None if all sizes are too close together.
    """
    sizes = np.array([transfer.size_bytes for transfer in transfers], dtype=np.float64)
    seconds = np.array([transfer.seconds for transfer in transfers], dtype=np.float64)
    # Each pair once: this runs after every request, which a slow core feels.
    one, other = np.tril_indices(len(transfers), -1)
    spread = sizes[other] - sizes[one]
    told = np.abs(spread) >= _LEAST_SPREAD_BYTES
    if np.count_nonzero(told) < _LEAST_OBSERVATIONS:
        return None
    slopes = (seconds[other] - seconds[one])[told] / spread[told]
    byte_s = max(0.0, _weighted_median(slopes, np.abs(spread[told])))
    rest_s = float(np.median(seconds - byte_s * sizes))
    return max(0.0, rest_s), max(byte_s, LEAST_BYTE_S)


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    """The value that splits the total weight in half."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(reached, reached[-1] / 2)]])
