"""Cluster files: a cluster described in TOML, for `plan` and `simulate` [DESIGN, Cluster file].
docs/site.py makes a page of the keys' descriptions.
"""

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coordinator.costs.affine import Costs
from coordinator.costs.cluster import Cluster, Device, EndpointOverhead, Link
from coordinator.costs.links import LIVE_LOOPBACK, LOOPBACK
from coordinator.costs.profile_json import parse_profile
from coordinator.costs.rates import RateCosts, flop_per_s
from coordinator.costs.regression import RegressionCosts
from protos.daemon.documents import first_problem
from protos.errors import BadConfiguration, BadRequest
from protos.wire.facts import DeviceId
from protos.wire.limits import Limits

# Reads a profile that the file refers to.
ReadFile = Callable[[str], bytes]

HOST = DeviceId("host")
# Keys of a computer that are fields of its costs.
_RATES = ("rate_1x1", "rate_depthwise", "rate_product", "map_byte_ns", "weight_ns", "weight_1x1")

# More would only slow down the search, whatever the file's origin.
_MOST_DEVICES = 256
_MOST_AT_ONCE = 256
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
    endpoint_ms_per_set_up: _NotNegative = Field(
        default=0.0,
        description="milliseconds to set a task up on a device, while it computes others",
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
            peer_message_s=_scaled(self.endpoint_ms_per_peer_message, 1e-3),
            peer_byte_s=_scaled(self.endpoint_ns_per_peer_byte, 1e-9),
            set_up_s=self.endpoint_ms_per_set_up * 1e-3,
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
    concurrency: Annotated[int, Field(ge=1, le=_MOST_AT_ONCE)] = Field(
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
    count: Annotated[int, Field(ge=1, le=_MOST_DEVICES)] = Field(
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


def _no_profile(name: str) -> bytes:
    raise FileNotFoundError("there are no files beside it")


def parse_cluster(text: str, name: str = "cluster.toml", read: ReadFile = _no_profile) -> Cluster:
    """The cluster of a file's text. `name` is the file's name in errors, `read` reads the profiles
    that the file refers to.

    Raises:
        BadRequest: not TOML, an unknown key (named), a wrong value, no device.
    """
    try:
        file = ClusterDocument.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise _bad(name, f"it is not TOML: {error}") from error
    except ValidationError as error:
        raise _bad(name, first_problem(error)) from error
    devices = (
        [_host(file.host, _costs(file.host, "host", name, read), name)]
        if file.host.computes
        else []
    )
    for index, entry in enumerate(file.device):
        costs = _costs(entry, f"device.{index}", name, read)
        link = replace(_link(file.network, entry.mbps), near=file.host.endpoint, far=entry.endpoint)
        devices += [_device(device_name, entry, costs, link, name) for device_name in _names(entry)]
    if not devices:
        raise _bad(name, "no device computes; add [[device]] entries")
    ids = [device.id for device in devices]
    twice = next((device_id for device_id in ids if ids.count(device_id) > 1), None)
    if twice is not None:
        raise _bad(name, f"two devices are called {twice!r}")
    uplink = None if file.network.medium == "air" else _link(file.network)
    return Cluster(tuple(devices), file.network.medium, uplink)


def _host(entry: Host, costs: Costs, file: str) -> Device:
    link = LOOPBACK
    if entry.worker is not None:
        link = replace(LIVE_LOOPBACK, near=entry.endpoint, far=entry.worker.endpoint)
    return replace(_device(HOST, entry, costs, link, file), host=True)


def _device(name: str, entry: ComputerTable, costs: Costs, link: Link, file: str) -> Device:
    try:
        limits = entry.limits.limits if entry.limits else None
    except BadConfiguration as error:
        raise _bad(file, f"{name}.limits: {error.cause}") from error
    return Device(
        id=DeviceId(name),
        name=name,
        costs=costs,
        link=link,
        speed=speed_of(costs) * entry.concurrency,
        memory_bytes=round(entry.memory_mb * 1e6),
        concurrency=entry.concurrency,
        limits=limits,
    )


def speed_of(costs: Costs) -> float:
    """FLOP/s on a common 3x3 convolution, by which AOFL ranks devices."""
    return flop_per_s(costs)


def _names(entry: DeviceEntry) -> Sequence[str]:
    """Names of `count` devices, numbered from the name's own number on: pi-1, pi-2, ..."""
    if entry.count == 1:
        return [entry.name]
    stem = entry.name.rstrip("0123456789")
    first = int(entry.name[len(stem) :] or 1)
    joined = stem if stem != entry.name or stem.endswith("-") else f"{stem}-"
    return [f"{joined}{first + index}" for index in range(entry.count)]


def _link(network: NetworkTable, mbps: float | None = None) -> Link:
    """A link of the network, or one with another bandwidth."""
    return Link(
        bytes_per_s=(mbps or network.mbps) * 1e6 / 8,
        message_s=network.message_ms * 1e-3,
        latency_s=network.latency_ms * 1e-3,
    )


def _costs(entry: ComputerTable, where: str, name: str, read: ReadFile) -> Costs:
    if (entry.gflops is None) == (entry.profile is None):
        raise _bad(name, f"{where} needs either gflops or profile")
    if entry.gflops is not None:
        others = tuple(_rates(other, other.gflops, engine=other.name) for other in entry.engine)
        return _rates(entry, entry.gflops, others=others)
    if entry.engine:
        raise _bad(name, f"{where}.engine goes with gflops; a profile has its own")
    assert entry.profile is not None
    try:
        return RegressionCosts(parse_profile(read(entry.profile)))
    except OSError as error:
        file, why = error.filename or entry.profile, error.strerror or str(error)
        raise _bad(name, f"{where}.profile {file} can't be read ({why})") from error


def _rates(table: RatesTable, gflops: float, **rest: Any) -> RateCosts:
    rates = {key: getattr(table, key) for key in _RATES}
    return RateCosts(gflops, run_s=table.run_ms * 1e-3, **rates, **rest)


def _bad(name: str, what: str) -> BadRequest:
    return BadRequest(
        cause=f"the cluster file {name}: {what}",
        cure="See docs/cluster-files.md for its keys, or write one with `imbrex status --save`.",
    )


def dump_cluster(cluster: Cluster, profiles: Mapping[DeviceId, str] | None = None) -> str:
    """The text of a cluster file. Devices with a profile refer to its file by name, others get
    their rate on a common layer. Every device has its own entry, because links differ.
    """
    links = [device.link for device in cluster.devices if not device.host]
    shared = cluster.uplink or (links[0] if links else LOOPBACK)
    host = next((device for device in cluster.devices if device.host), None)
    lines = ["[host]"]
    lines += _computer_lines(host, profiles or {}) if host else ["computes = false"]
    near = links[0].near if links else host.link.near if host else EndpointOverhead()
    lines += _endpoint_lines(near)
    lines += _tables("host", host, profiles or {})
    if host and host.link.far != EndpointOverhead():
        lines += ["", "[host.worker]", *_endpoint_lines(host.link.far)]
    lines += [
        "",
        "[network]",
        f'medium = "{cluster.medium}"',
        f"mbps = {shared.bytes_per_s * 8e-6!r}",
        f"message_ms = {shared.message_s * 1e3!r}",
        f"latency_ms = {shared.latency_s * 1e3!r}",
    ]
    for device in cluster.devices:
        if not device.host:
            lines += ["", "[[device]]", f"name = {json.dumps(device.id)}"]
            lines += _computer_lines(device, profiles or {})
            if device.link.bytes_per_s != shared.bytes_per_s:
                lines.append(f"mbps = {device.link.bytes_per_s * 8e-6!r}")
            lines += _endpoint_lines(device.link.far)
            lines += _tables("device", device, profiles or {})
    return "\n".join(lines) + "\n"


def _computer_lines(device: Device, profiles: Mapping[DeviceId, str]) -> list[str]:
    lines = []
    costs = device.costs
    if device.id in profiles:
        lines.append(f"profile = {json.dumps(profiles[device.id])}")
    elif isinstance(costs, RateCosts):
        lines += _rate_lines(costs)
    else:
        lines.append(f"gflops = {speed_of(costs) * 1e-9!r}")
    if device.memory_bytes:
        lines.append(f"memory_mb = {device.memory_bytes * 1e-6!r}")
    if device.concurrency > 1:
        lines.append(f"concurrency = {device.concurrency}")
    return lines


def _rate_lines(costs: RateCosts) -> list[str]:
    rates = {key: getattr(costs, key) for key in _RATES} | {"run_ms": costs.run_s * 1e3}
    told = {
        key: rate for key, rate in rates.items() if rate != RatesTable.model_fields[key].default
    }
    return [f"gflops = {costs.gflops!r}", *(f"{key} = {rate!r}" for key, rate in told.items())]


def _tables(section: str, device: Device | None, profiles: Mapping[DeviceId, str]) -> list[str]:
    """The sub-tables of a device: its other engines, and its limits."""
    if device is None:
        return []
    lines = []
    if isinstance(device.costs, RateCosts) and device.id not in profiles:
        for other in device.costs.others:
            name = json.dumps(other.engine)
            lines += ["", f"[[{section}.engine]]", f"name = {name}", *_rate_lines(other)]
    if device.limits is None:
        return lines
    named = ((key, getattr(device.limits, key)) for key in ("networks", "shapes", "dtypes"))
    return [
        *lines,
        "",
        f"[{section}.limits]",
        *(f"{k} = {json.dumps(value)}" for k, value in named if value),
    ]


def _endpoint_lines(end: EndpointOverhead) -> list[str]:
    rates = {
        "endpoint_ns_per_byte": end.byte_s * 1e9,
        "endpoint_ms_per_message": end.message_s * 1e3,
        "endpoint_ms_per_task": end.task_s * 1e3,
        "endpoint_ms_per_set_up": end.set_up_s * 1e3,
        "endpoint_ms_per_peer_message": _scaled(end.peer_message_s, 1e3),
        "endpoint_ns_per_peer_byte": _scaled(end.peer_byte_s, 1e9),
    }
    # Without this line, messages between devices would cost the same as others; 0 is the default
    # elsewhere.
    said = (
        item for item in rates.items() if item[1] or ("peer" in item[0] and item[1] is not None)
    )
    return [f"{key} = {rate!r}" for key, rate in said]


def _scaled(value: float | None, times: float) -> float | None:
    """The value in another unit; None stays None."""
    return None if value is None else value * times
