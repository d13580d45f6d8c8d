"""A worker's settings: one frozen value, read once at start.

Later sources win: defaults, a TOML file, the environment (`IMBREX_WORKER_*`), overrides from the
command line. An unknown key anywhere is an error that names the key.
"""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import platformdirs
import psutil  # type: ignore[import-untyped, unused-ignore]
from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from protos.errors import BadConfiguration
from protos.settings import read_settings
from worker.engines.registry import AUTO

ENV_PREFIX = "IMBREX_WORKER_"
DEFAULT_PORT = 8470

# A task at once for each core of the largest computers.
MOST_AT_ONCE = 256

# The system, gRPC and the page cache need the rest.
_SHARE_OF_MEMORY = 0.75


class WorkerSettings(BaseSettings):
    """The settings of a worker."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="forbid", frozen=True
    )

    host: str = Field(
        "127.0.0.1", description="address to listen on; others than loopback need a certificate"
    )
    port: int = Field(DEFAULT_PORT, ge=0, le=65535, description="0 takes any free port")
    data_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="port for neighbours' halos; default: the port after `port`, or a free one",
    )
    state_dir: Path = Field(
        default_factory=lambda: platformdirs.user_state_path("imbrex") / "worker",
        description="identity, weights, optimised programs",
    )
    name: str = Field(
        "", max_length=60, description="display name; default: the machine's host name"
    )
    pace: float = Field(1.0, gt=0, le=1, description="share of one core that computation may take")
    engine: str = Field(
        AUTO,
        description="the engine that computes; auto: the fastest, as measured (docs/engines.md)",
    )
    cores: int = Field(0, ge=0, description="cores that computation may use; 0: all")
    threads: int = Field(
        0, ge=0, description="threads of one task; 0: as measured, with `concurrency`"
    )
    concurrency: int = Field(
        0, ge=0, le=MOST_AT_ONCE, description="tasks computed at once; 0: as measured, else one"
    )
    memory_mb: int = Field(0, ge=0, description="memory the worker may use; 0: 3/4 of all")
    disk_mb: int = Field(4096, ge=1, description="weights kept on disk")
    nice: int = Field(5, ge=0, le=19, description="how much computation yields to other programs")
    cluster: str = Field(
        "home", max_length=60, description="advertised name; coordinators look for it"
    )
    secret: str = Field(
        "", repr=False, description="shared by every daemon of a cluster without certificates"
    )
    join: str = Field("", repr=False, description="a join token, used once to enrol")
    mdns: bool = Field(True, description="advertise over multicast DNS")
    mdns_interfaces: tuple[str, ...] = Field(
        (), description="addresses to advertise on; default: those listened on"
    )
    log_json: bool = Field(False, description="logs as JSON lines")
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$")

    @field_validator("secret")
    @classmethod
    def _secret_fits_metadata(cls, value: str) -> str:
        if not value.isascii() or not (value.isprintable() or not value):
            raise ValueError("only printable ASCII characters travel in gRPC metadata")
        return value

    @field_validator("concurrency")
    @classmethod
    def _one_at_a_time_where_paced(cls, value: int, info: ValidationInfo) -> int:
        if value > 1 and info.data.get("pace", 1.0) < 1:
            raise ValueError("a pace below 1 allows one task at a time")
        return value

    @property
    def shown_name(self) -> str:
        """The device's display name."""
        return self.name or socket.gethostname()

    @property
    def wanted_data_port(self) -> int:
        """The port to listen on for neighbours; 0 for any free port."""
        if self.data_port is not None:
            return self.data_port
        return self.port + 1 if 0 < self.port < 65535 else 0

    @property
    def usable_cores(self) -> int:
        """Cores that computation may use."""
        present = len(os.sched_getaffinity(0))
        return min(self.cores, present) if self.cores else present

    @property
    def task_threads(self) -> int:
        """Intra-op threads of one task. One if the pace is below 1: the pace is a share of one
        core, and only the CPU time of the computing thread is known.
        """
        if self.pace < 1:
            return 1
        return self.threads or self.usable_cores

    @property
    def memory_bytes(self) -> int:
        """Memory that the worker may use."""
        if self.memory_mb:
            return self.memory_mb * 1_000_000
        return int(psutil.virtual_memory().total * _SHARE_OF_MEMORY)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Disables pydantic's sources: `load` merges file, environment and overrides to name
        unknown keys.
        """
        return (init_settings,)


def load(
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> WorkerSettings:
    """The settings from all sources; None among `overrides` means not given.

    Raises:
        BadConfiguration: an unreadable file, an unknown key, a value out of range.
    """
    values = read_settings(file, "worker") if file else {}
    where = dict.fromkeys(values, str(file))
    for key, text in environ.items():
        if key.startswith(ENV_PREFIX):
            name = key.removeprefix(ENV_PREFIX).lower()
            values[name] = text.split(",") if name == "mdns_interfaces" else text
            where[name] = key
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    values |= given
    where |= dict.fromkeys(given, "the command line")
    try:
        return WorkerSettings(**values)
    except ValidationError as error:
        raise _explained(error, where) from None


def _explained(error: ValidationError, where: Mapping[str, str]) -> BadConfiguration:
    first = error.errors()[0]
    key = str(first["loc"][0]) if first["loc"] else "?"
    source = where.get(key, "the settings")
    if first["type"] == "extra_forbidden":
        known = ", ".join(sorted(WorkerSettings.model_fields))
        return BadConfiguration(
            cause=f"unknown worker setting {key!r} in {source}", cure=f"Known settings: {known}"
        )
    return BadConfiguration(
        cause=f"worker setting {key!r} in {source} is not usable: {first['msg']}",
        cure=WorkerSettings.model_fields[key].description or "Correct it",
    )
