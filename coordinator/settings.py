"""The coordinator's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import psutil
from pydantic import BeforeValidator, Field, model_validator

from coordinator.costs import Medium
from models.tensors.precision import Wire
from protos.daemon.files import own_folder
from protos.daemon.settings import DaemonSettings, Port
from protos.errors import BadConfiguration

HTTP_PORT = 8460
GRPC_PORT = 8461
ENROL_PORT = 8462
SHARE_PORT = 8463

Objective = Literal["latency", "throughput", "auto"]


def _half_of_the_memory() -> int:
    return psutil.virtual_memory().total // 2


OffOrSeconds = Annotated[
    float, BeforeValidator(lambda given: 0.0 if given == "off" else given), Field(ge=0)
]


class CoordinatorSettings(DaemonSettings):
    """The settings of a coordinator."""

    daemon: ClassVar[Literal["coordinator"]] = "coordinator"

    host: str = Field(default="127.0.0.1", description="The address to listen on")
    port: Port = Field(default=HTTP_PORT, description="The HTTP port; 0: any free one")
    grpc_port: Port | None = Field(
        default=None,
        description=f"The gRPC port of the Open Inference Protocol; by default {GRPC_PORT}, or any "
        "free one if `port` is 0",
    )
    state_dir: Path = Field(
        default_factory=lambda: own_folder("state", "state_dir (--state-dir)") / "coordinator",
        description="The directory for its state",
    )
    cluster: str = Field(default="home", description="The cluster's name on mDNS")
    secret: str = Field(
        default="",
        repr=False,
        description="A password shared by every daemon of a cluster without certificates",
    )
    enrol_host: str = Field(
        default="0.0.0.0",  # noqa: S104 - behind TLS and an invitation
        description="The address at which devices join a cluster that has an authority (`imbrex "
        "cluster init`)",
    )
    enrol_port: Port = Field(default=ENROL_PORT, description="The port at which devices join")
    share_port: Port = Field(
        default=SHARE_PORT,
        description="The port, at `enrol_host`, at which the cluster's coordinators fetch models "
        "from each other",
    )
    workers: tuple[str, ...] = Field(
        default=(), description="A worker that mDNS can't find, as HOST:PORT; always tried"
    )
    mdns: bool = Field(default=True, description="Whether to look for workers over multicast DNS")
    interfaces: tuple[str, ...] = Field(
        default=(), description="The address of an interface to use mDNS on; by default all"
    )
    models: tuple[str, ...] = Field(default=("digits",), description="A model to load at start")
    model_repository: Path | None = Field(
        default=None,
        description="A directory of more models, in Triton's layout: NAME/1/model.onnx",
    )
    detector: str = Field(
        default="",
        description="The model that answers Frigate and Blue Iris (DeepStack's interface)",
    )
    frigate_zmq: tuple[str, ...] = Field(
        default=(),
        description="An address at which to serve Frigate's zmq detectors, such as "
        "tcp://127.0.0.1:5555 or ipc://PATH",
    )
    strategy: str = Field(default="auto", description="The planning strategy")
    planners: tuple[str, ...] = Field(
        default=(),
        description="A strategy that requests may name, beside the installed ones, as "
        "MODULE:FUNCTION",
    )
    wire: Wire | None = Field(
        default=None,
        description="The format in which feature maps may travel between devices, where that is "
        "faster; by default what each model allows",
    )
    host_computes: bool = Field(default=True, description="Whether this machine also computes")
    host_pace: float = Field(
        default=1.0, description="The share of one core that computation on this machine may take"
    )
    host_worker: str = Field(
        default="",
        description="The address of this machine's worker, where other devices send it halos; by "
        "default the machine's own, if `host` is not loopback and the cluster has an authority or "
        "a secret",
    )
    medium: Medium = Field(
        default="switch", description="What the network's links share, as in cluster files"
    )
    replan: OffOrSeconds = Field(
        default=60.0,
        description="Look for a better plan every S seconds, if requests have shown something new; "
        "off (or 0): change plans only by hand or when devices come and go",
    )
    profile: bool = Field(default=True, description="Whether to measure devices when they are idle")
    profile_s: float = Field(
        default=60.0,
        gt=0,
        le=60.0,
        description="The time that measuring one device may take, in seconds",
    )
    max_queue: int = Field(
        default=64, ge=0, description="Requests that may wait; more are answered 503"
    )
    max_wait_s: float = Field(
        default=30.0,
        gt=0,
        description="The longest that a request may be expected to wait, in seconds; beyond that, "
        "it is answered 503",
    )
    objective: Objective = Field(
        default="auto",
        description="With several images at a time: latency computes each on all devices, "
        "throughput gives whole images to groups of devices for the most per second, and auto does "
        "so if that answers them sooner",
    )
    max_in_flight: int = Field(default=16, ge=1, description="Requests computed at a time")
    max_body_bytes: int = Field(
        default=64 * 1024 * 1024, ge=1, description="The largest body of a request, in bytes"
    )
    audit_every: int = Field(
        default=200,
        ge=0,
        le=1_000_000,
        description="After a random number of tasks of a device, from 1 to 1.5 times this, one is "
        "computed again and compared; 0: never",
    )
    max_models_bytes: int = Field(
        default_factory=_half_of_the_memory,
        gt=0,
        description="Bytes of weights to keep loaded; beyond that, the models that have been "
        "unused for longest are unloaded, except those in `models`. By default half of the memory",
    )
    max_json_bytes: int = Field(
        default=8 * 1024 * 1024,
        ge=1,
        description="The largest JSON of a request, in bytes; larger tensors are sent as bytes",
    )
    min_body_bytes_per_s: float = Field(
        default=50_000.0,
        ge=0,
        description="A body that arrives more slowly loses its place to one that waits; 0: any may",
    )
    max_connections: int = Field(
        default=64,
        ge=1,
        description="Open HTTP connections of one address; those of this device, which may be a "
        "proxy, are not counted",
    )
    host_names: tuple[str, ...] = Field(
        default=(), description="Another host name of this device that clients may use"
    )
    rate_per_s: float = Field(
        default=200.0, ge=0, description="Requests per second from one key or address; 0: no limit"
    )
    tls: bool = Field(
        default=False,
        description="Whether clients use TLS, with a certificate of the cluster's authority for "
        "this device's names and addresses",
    )
    tls_cert: Path | None = Field(
        default=None, description="Serve clients over TLS with this certificate, in PEM"
    )
    tls_key: Path | None = Field(default=None, description="The key of `tls_cert`, in PEM")
    tls_names: tuple[str, ...] = Field(
        default=(), description="Another name or address for the certificate of `tls`"
    )
    log: Literal["auto", "json", "console"] = Field(
        default="auto", description="json: log lines as JSON; else as text"
    )
    log_level: str = Field(
        default="info",
        pattern="^(debug|info|warning|error)$",
        description="The least that is logged: debug, info, warning or error",
    )

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing, there = ("key", "cert") if self.tls_key is None else ("cert", "key")
            raise BadConfiguration(
                cause=f"tls_{there} is set without tls_{missing}",
                cure=f"Set tls_{missing} (--tls-{missing}), too, or leave out tls_{there}",
            )
        return self
