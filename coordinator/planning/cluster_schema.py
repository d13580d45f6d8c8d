"""The keys of a cluster file; docs/site.py makes a page of their descriptions."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from coordinator.costs.cluster import EndpointOverhead
from protos.wire.limits import Limits

# More would only slow down the search, whatever the file's origin.
MOST_DEVICES = 256
MOST_AT_ONCE = 256

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False)


class End(_Strict):
    """What one machine's software needs besides computing."""

    endpoint_ms_per_message: _NotNegative = Field(
        default=0.0, description="milliseconds to send or receive a message"
    )
    endpoint_ns_per_byte: _NotNegative = Field(
        default=0.0, description="nanoseconds to send or receive a byte"
    )
    endpoint_ms_per_task: _NotNegative = Field(
        default=0.0, description="milliseconds to start a task; on the host, to describe one"
    )
    endpoint_ms_per_peer_message: _NotNegative | None = Field(
        default=None,
        description="milliseconds to send or receive a message between devices; "
        "by default as `endpoint_ms_per_message`",
    )
    endpoint_ns_per_peer_byte: _NotNegative | None = Field(
        default=None,
        description="nanoseconds per byte of such a message; by default as `endpoint_ns_per_byte`",
    )

    @property
    def endpoint(self) -> EndpointOverhead:
        """The same in seconds."""
        return EndpointOverhead(
            message_s=self.endpoint_ms_per_message * 1e-3,
            byte_s=self.endpoint_ns_per_byte * 1e-9,
            task_s=self.endpoint_ms_per_task * 1e-3,
            peer_message_s=scaled(self.endpoint_ms_per_peer_message, 1e-3),
            peer_byte_s=scaled(self.endpoint_ns_per_peer_byte, 1e-9),
        )


class Limited(_Strict):
    """What a device takes whose engine computes whole networks only."""

    networks: list[str] = Field(
        default=[], description="the SHA-256 of the ONNX files that it takes; none: any network"
    )
    shapes: list[str] = Field(
        default=[], description='shapes of the inputs, as `"1x3x640x640"`; none: any shape'
    )
    dtypes: list[str] = Field(
        default=[],
        description='types of inputs and outputs, as `"uint8"`, a picture\'s; none: any type',
    )

    @property
    def limits(self) -> Limits:
        """The same for planners.

        Raises:
            BadConfiguration: a text means nothing.
        """
        return Limits(self.networks, self.shapes, self.dtypes)


class RatesTable(_Strict):
    """How much slower than a dense convolution an engine computes some classes of layers, and what
    it takes besides.
    """

    rate_1x1: _Positive = Field(
        default=1.0, description="the share of `gflops` that 1x1 convolutions reach"
    )
    rate_depthwise: _Positive = Field(
        default=1.0, description="the share of `gflops` that depthwise convolutions reach"
    )
    rate_product: _Positive = Field(
        default=1.0,
        description="the share of `gflops` that matrix products and fully connected layers reach",
    )
    map_byte_ns: _NotNegative = Field(
        default=0.0,
        description="nanoseconds per byte of the maps that a layer reads and writes; what follows "
        "a convolution and reads nothing else is fused with it, and takes none",
    )
    weight_ns: _NotNegative = Field(
        default=0.0, description="nanoseconds to read one weight, once per inference"
    )
    weight_1x1: _NotNegative = Field(
        default=1.0, description="the share of `weight_ns` that layers without a window need"
    )
    run_ms: _NotNegative = Field(
        default=0.0, description="milliseconds that each run of a program takes in addition"
    )


class EngineTable(RatesTable):
    """Another engine of a device, which computes the blocks that it is faster at."""

    name: Annotated[str, Field(min_length=1)] = Field(description="the engine's name, as `ncnn`")
    gflops: _Positive = Field(description="GFLOP/s that it reaches")


class ComputerTable(End, RatesTable):
    """What host and devices share; each that computes needs a rate or a profile."""

    gflops: _Positive | None = Field(
        default=None, description="GFLOP/s that the machine reaches; a multiply-add counts as two"
    )
    profile: str | None = Field(
        default=None,
        description="instead of `gflops`: a file in the same folder, from `imbrex status --save`",
    )
    engine: list[EngineTable] = Field(
        default=[], description="beside `gflops`: the device's other engines"
    )
    memory_mb: _NotNegative = Field(
        default=0.0, description="megabytes that the worker may use; 0: no limit"
    )
    concurrency: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)] = Field(
        default=1, description="tasks that it computes at the same time, each at `gflops`"
    )
    limits: Limited | None = Field(
        default=None, description="if its engine computes whole networks only: which of them"
    )


class Host(ComputerTable):
    """The coordinator's machine. Its own `endpoint_` keys are those of the coordinator; `worker`
    has those of its host worker.
    """

    computes: bool = Field(default=True, description="whether a host worker takes part")
    worker: End | None = Field(default=None, description="the host worker's `endpoint_` keys")


class NetworkTable(_Strict):
    """What connects the machines."""

    medium: Literal["star", "air", "switch"] = Field(
        default="star",
        description="`star`: all devices share the host's port; `air`: all messages share one "
        "medium, as on Wi-Fi; `switch`: every device has a port of its own for both directions",
    )
    mbps: _Positive = Field(description="megabits per second of a port, or of the air")
    message_ms: _NotNegative = Field(
        default=0.0, description="milliseconds for which a message occupies the wire, however small"
    )
    latency_ms: _NotNegative = Field(
        default=0.0, description="milliseconds until a message arrives at the other end"
    )


class DeviceEntry(ComputerTable):
    """A device, or several that are alike."""

    name: Annotated[str, Field(min_length=1)] = Field(
        description="its name, or that of the first of several: after `pi-1` come `pi-2` and so on"
    )
    count: Annotated[int, Field(ge=1, le=MOST_DEVICES)] = Field(
        default=1, description="the number of such devices"
    )
    mbps: _Positive | None = Field(
        default=None,
        description="megabits per second of its own link, if they differ from the network's",
    )


class ClusterDocument(_Strict):
    """A cluster file."""

    host: Host = Host(computes=False)
    network: NetworkTable
    device: list[DeviceEntry] = []


def scaled(value: float | None, times: float) -> float | None:
    """The value in another unit; None stays None."""
    return None if value is None else value * times
