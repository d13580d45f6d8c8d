"""What Python, gRPC and sockets need of a server's core, as measured: presets charge multiples."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Software:
    """Of one side: a message of the host and each of its bytes, a message between workers and each
    of its bytes, a task on its device (taken in, set up, and from when its input is full until it
    computes), and describing one at the host.
    """

    message_ms: float
    byte_ns: float
    peer_message_ms: float
    peer_byte_ns: float
    task_ms: float
    describe_ms: float

    def slower(self, times: float) -> dict[str, float]:
        """The same on a computer whose software is so many times slower."""
        return {name: round(getattr(self, name) * times, 4) for name in self.__slots__}


# How long the server's core takes for the interpreted function of `benchmarks.report.provenance`.
# What a faster or slower core measured is converted in proportion. It is the core of
# `messages.json`, as far as two figures tell: there, describing a task and taking it in took 2.0
# and 2.2 times as long as the same version took on a core of 0.61 ms.
SERVER_PYTHON_MS = 1.3
# On a quiet machine, by `benchmarks.messages` and `benchmarks.handover`; a test compares them with
# the results of these.
SERVER = Software(
    message_ms=0.14995,
    byte_ns=0.24789,
    peer_message_ms=0.1095,
    peer_byte_ns=0.33017,
    task_ms=0.13898,
    describe_ms=0.03785,
)
# The same under mutual TLS.
SERVER_TLS = replace(
    SERVER,
    message_ms=0.17565,
    byte_ns=0.87438,
    peer_message_ms=0.12425,
    peer_byte_ns=1.23271,
)
