"""The cost of messages and tasks to a device besides computing: an average of observations.

Requests show how long tasks waited for their device's event loop while nothing was being computed,
and how long messages took between devices. The mean is what matters, since a request waits for each
of them; hiccups and waits behind other requests are clipped at a multiple of the median.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coordinator.costs.cluster import EndpointOverhead

# Measured on an x86-64 core (gRPC streams and asyncio over loopback), as the prior for any machine.
# The host: 1.1 ms for 530 KB; and 40 us per task, whose boxes and peers it describes.
HOST_ENDPOINT = EndpointOverhead(message_s=0.0004, byte_s=1 / 0.75e9, task_s=0.00004)
DEVICE_ENDPOINT = EndpointOverhead(
    message_s=0.0004, byte_s=1 / 0.75e9, task_s=0.0002, peer_message_s=0.0001, peer_byte_s=1 / 3e9
)

# What a byte costs between devices, as a multiple of what it costs with the host, where it is
# copied once less: measured by `benchmarks.messages`, with TLS and without.
_PEER_BYTE = 4 / 3

# About this long after a lasting change, half of it is believed.
_TIME_CONSTANT_S = 20.0
# A first estimate should settle within ten requests, however close together they are.
_LEAST_WEIGHT = 0.2
_MOST_MEDIANS = 5.0
# No message takes a home's computer longer than this.
_MOST_S = 0.1


@dataclass(frozen=True, slots=True)
class EndpointEstimate:
    """A device's endpoint costs: `prior`, then the averages of observations."""

    endpoint: EndpointOverhead = DEVICE_ENDPOINT
    observations: int = 0
    updated_s: float = 0.0

    def probed(self, message_s: float) -> "EndpointEstimate":
        """The estimate after a probe of the host's cost per message, which requests do not show."""
        return replace(self, endpoint=replace(self.endpoint, message_s=min(_MOST_S, message_s)))

    def of_bytes(self, byte_s: float) -> "EndpointEstimate":
        """The estimate after a probe of the cost per byte, which requests do not show."""
        return replace(self, endpoint=replace(self.endpoint, byte_s=byte_s))

    def of_peer_bytes(self, byte_s: float) -> "EndpointEstimate":
        """The estimate when a byte of the host's messages costs `byte_s` on this machine."""
        peer_byte_s = max(DEVICE_ENDPOINT.to_peers.byte_s, _PEER_BYTE * byte_s)
        return replace(self, endpoint=replace(self.endpoint, peer_byte_s=peer_byte_s))

    def observed(
        self, waits_s: Sequence[float], messages_s: Sequence[float], now: float
    ) -> "EndpointEstimate":
        """The estimate after a request, in which tasks waited this long for the event loop, and
        messages with peers took it this long.
        """
        if not waits_s and not messages_s:
            return self
        elapsed = max(0.0, now - self.updated_s) if self.observations else _TIME_CONSTANT_S
        weight = max(_LEAST_WEIGHT, 1.0 - math.exp(-elapsed / _TIME_CONSTANT_S))
        before = self.endpoint
        return EndpointEstimate(
            replace(
                before,
                task_s=_moved(before.task_s, waits_s, weight),
                peer_message_s=_moved(before.to_peers.message_s, messages_s, weight),
            ),
            self.observations + 1,
            now,
        )


def _moved(before: float, seconds: Sequence[float], weight: float) -> float:
    if not seconds:
        return before
    return before + weight * (min(_MOST_S, _mean_without_hiccups(seconds)) - before)


def _mean_without_hiccups(seconds: Sequence[float]) -> float:
    positive = [max(0.0, value) for value in seconds]
    most = _MOST_MEDIANS * statistics.median(positive)
    return statistics.fmean(min(value, most) for value in positive)
