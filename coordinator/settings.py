"""Settings of the coordinator: one frozen value, read once at start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import platformdirs
import psutil
from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from coordinator.costs.devices import Medium
from models.wire import Wire
from protos.errors import BadConfiguration
from protos.settings import read_settings

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


class CoordinatorSettings(BaseSettings):
    """Settings from flags, the environment (`IMBREX_COORDINATOR_*`) and a TOML file; the first
    wins.

    `workers` lists `host:port` addresses that are always tried, in addition to those that mDNS
    finds. `host_computes` starts a worker on this machine, which listens on `host_worker`: an
    address that the other devices can reach, if they are to send it halos. `enrol_host` and
    `enrol_port` are where devices join a cluster that has an authority (`imbrex cluster init`);
    without one, `secret` is what every daemon must know. At `enrol_host` and `share_port`, several
    coordinators of one cluster fetch models from each other.

    `model_repository` is a folder in Triton's layout, whose models are made ready beside `models`.
    `detector` names the model that answers DeepStack's clients. Beyond `max_models_bytes` of
    weights (half of the memory by default), the models that have been unused for longest are
    unloaded, but never those that `models` lists.

    `objective`: when several images come at a time, `auto` gives whole images to groups of devices
    if that answers them sooner; `latency` computes each on all devices, `throughput` answers the
    most per second. `replan` is a period in seconds, or `off` (0): plans then change only by hand
    or when their devices do. `planners` names `package.module:function`s that requests may choose
    beside the installed strategies. `wire` is the encoding of maps between devices; without it,
    each model's sidecar decides. `medium` says what the links share, as in cluster files.
    `profile_s` bounds the time to measure one device. A task of each device is computed again
    and compared after a random number of others, from 1 to 1.5 times `audit_every`; 0: none.

    `grpc_port` is that of the Open Inference Protocol; unset, it is the default port, or any free
    one if `port` is 0. A request that would wait for longer than `max_wait_s` is told to come back
    later. `frigate_zmq` lists where Frigate's `zmq` detectors find this coordinator, as
    `tcp://127.0.0.1:5555` or `ipc://PATH`. `rate_per_s` is how often one API key, or one address
    without a key, may ask; 0: no limit. A body slower than `min_body_bytes_per_s` loses its place
    to one that waits. `max_json_bytes` bounds JSON: tensors as text take much memory, larger ones
    are sent as bytes. At most `max_connections` of one address are open, except of this device
    itself, which may be a proxy. `host_names` are names of this device that clients use beside its
    own. `tls` makes clients use TLS: with a certificate of the cluster's authority for this
    device's names and addresses and `tls_names`, or with `tls_cert` and `tls_key`, files in PEM.
    """

    model_config = SettingsConfigDict(env_prefix="IMBREX_COORDINATOR_", extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = HTTP_PORT
    grpc_port: int | None = None
    state_dir: Path = Path(platformdirs.user_state_dir("imbrex")) / "coordinator"
    cluster: str = "home"
    secret: str = Field(default="", repr=False)
    enrol_host: str = "0.0.0.0"  # noqa: S104 - behind TLS and an invitation
    enrol_port: int = ENROL_PORT
    share_port: int = SHARE_PORT
    workers: tuple[str, ...] = ()
    mdns: bool = True
    interfaces: tuple[str, ...] = ()
    models: tuple[str, ...] = ("digits",)
    model_repository: Path | None = None
    detector: str = ""
    frigate_zmq: tuple[str, ...] = ()
    strategy: str = "auto"
    planners: tuple[str, ...] = ()
    wire: Wire | None = None
    host_computes: bool = True
    host_pace: float = 1.0
    host_worker: str = "127.0.0.1"
    medium: Medium = "switch"
    replan: OffOrSeconds = 60.0
    profile: bool = True
    profile_s: float = Field(default=60.0, gt=0, le=60.0)
    max_queue: int = 64
    max_wait_s: float = Field(default=30.0, gt=0)
    objective: Objective = "auto"
    max_in_flight: int = 16
    max_body_bytes: int = 64 * 1024 * 1024
    audit_every: int = Field(default=200, ge=0, le=1_000_000)
    max_models_bytes: int = Field(default_factory=_half_of_the_memory, gt=0)
    max_json_bytes: int = 8 * 1024 * 1024
    min_body_bytes_per_s: float = Field(default=50_000.0, ge=0)
    max_connections: int = Field(default=64, ge=1)
    host_names: tuple[str, ...] = ()
    rate_per_s: float = Field(default=200.0, ge=0)
    tls: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_names: tuple[str, ...] = ()
    log: Literal["auto", "json", "console"] = "auto"

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags win over the environment; the file's values come as flags' defaults (see
        `load`).
        """
        return init_settings, env_settings


def load_settings(flags: dict[str, Any], file: Path | None = None) -> CoordinatorSettings:
    """Reads the settings.

    Raises:
        BadConfiguration: names the file and the key.
    """
    values = read_settings(file, "coordinator") if file is not None else {}
    environment = CoordinatorSettings.model_config["env_prefix"].lower()
    chosen = {key: value for key, value in flags.items() if value is not None}
    try:
        return CoordinatorSettings(**{**_without_environment(values, environment), **chosen})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "tls_cert"
        raise BadConfiguration(
            cause=f"the setting {key!r} is wrong: {first['msg']}",
            cure=f"See `imbrex coordinator --help`{f' and {file}' if file else ''}.",
        ) from error


def _without_environment(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Values of the file that the environment does not override."""
    set_there = {key.lower() for key in os.environ}
    return {key: value for key, value in values.items() if prefix + key.lower() not in set_there}
