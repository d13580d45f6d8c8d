"""What Python, gRPC and sockets need of a server's core, as measured: presets charge multiples."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Software(BaseModel):
    """Of one side: a message of the host and each of its bytes, a message between workers and each
    of its bytes, a task on its device (from when its input is full until it computes; and before
    that, taken in and set up), and describing one at the host.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    message_ms: _Cost = 0.0
    byte_ns: _Cost = 0.0
    peer_message_ms: _Cost = 0.0
    peer_byte_ns: _Cost = 0.0
    task_ms: _Cost = 0.0
    set_up_ms: _Cost = 0.0
    describe_ms: _Cost = 0.0

    def slower(self, times: float) -> dict[str, float]:
        """The same on a computer whose software is so many times slower."""
        return {name: round(cost * times, 4) for name, cost in self.model_dump().items()}


# How long the server's core takes for the interpreted function of `benchmarks.report.provenance`:
# of what another core measured, as much is charged as it is slower. It is the core that is five
# times as fast as a Pi 4, as its factor says. A Pi 4 at 1.5 GHz needs 158.3 s for five million
# steps of the n-body problem in Python [chaitanyamehta.github.io/projects/
# performance-analysis-of-programming-languages]; a core of 0.60 ms needs 20.2 s, in Python 3.7.
SERVER_PYTHON_MS = 0.94
# On a quiet machine, by `benchmarks.messages` and `benchmarks.handover`; a test compares them with
# the results of these.
SERVER = Software(
    message_ms=0.08328,
    byte_ns=0.16793,
    peer_message_ms=0.08839,
    peer_byte_ns=0.16517,
    task_ms=0.06320,
    set_up_ms=0.03575,
    describe_ms=0.02410,
)
# The same under mutual TLS.
SERVER_TLS = SERVER.model_copy(
    update={
        "message_ms": 0.09612,
        "byte_ns": 0.63944,
        "peer_message_ms": 0.10084,
        "peer_byte_ns": 0.62796,
    }
)
