"""A worker's settings."""

import os
import socket
from pathlib import Path
from typing import ClassVar, Literal

import psutil  # type: ignore[import-untyped, unused-ignore]
from pydantic import Field, ValidationInfo, field_validator

from protos.daemon.files import own_folder
from protos.daemon.settings import DaemonSettings, Port
from worker.engines import AUTO

DEFAULT_PORT = 8470

# A task at once for each core of the largest computers.
MOST_AT_ONCE = 256

# The system, gRPC and the page cache need the rest.
_SHARE_OF_MEMORY = 0.75


class WorkerSettings(DaemonSettings):
    """The settings of a worker."""

    daemon: ClassVar[Literal["worker"]] = "worker"

    host: str = Field(
        "127.0.0.1",
        description="The address to listen on; any but loopback needs a certificate or the secret",
    )
    port: Port = Field(DEFAULT_PORT, description="The port to listen on; 0: any free one")
    data_port: Port | None = Field(
        None,
        description="The port for tensors from other devices; by default the one after `port`",
    )
    state_dir: Path = Field(
        default_factory=lambda: own_folder("state", "state_dir (--state-dir)") / "worker",
        description="The directory of its identity, weights and optimised programs",
    )
    name: str = Field(
        "", max_length=60, description="The name shown to people; by default the host name"
    )
    engine: str = Field(
        AUTO,
        description="The inference engine; auto: the fastest that computes correctly, as measured "
        "(docs/engines.md)",
    )
    pace: float = Field(
        1.0, gt=0, le=1, description="The share of one core that computation may take, such as 0.4"
    )
    cores: int = Field(0, ge=0, description="Cores that computation may use; 0: all")
    threads: int = Field(
        0, ge=0, description="Threads of one task; 0: as measured, with `concurrency`"
    )
    concurrency: int = Field(
        0, ge=0, le=MOST_AT_ONCE, description="Tasks computed at once; 0: as measured, else one"
    )
    memory_mb: int = Field(
        0, ge=0, description="The memory it may use, in MB; 0: three quarters of all"
    )
    disk_mb: int = Field(4096, ge=1, description="Weights kept on disk, in MB")
    nice: int = Field(5, ge=0, le=19, description="How much computation yields to other programs")
    cluster: str = Field("home", max_length=60, description="The cluster's name on mDNS")
    secret: str = Field(
        "",
        repr=False,
        description="A password shared by every daemon of a cluster without certificates",
    )
    join: str = Field(
        "", repr=False, description="A token of `imbrex cluster invite`, to join a cluster once"
    )
    mdns: bool = Field(True, description="Whether to be found over multicast DNS")
    mdns_interfaces: tuple[str, ...] = Field(
        (),
        description="The addresses of the interfaces to use mDNS on; by default those listened on",
    )
    log_json: bool = Field(False, description="Whether log lines are JSON")
    log_level: str = Field(
        "info",
        pattern="^(debug|info|warning|error)$",
        description="The least that is logged: debug, info, warning or error",
    )

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
