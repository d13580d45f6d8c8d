"""`imbrex worker` and `imbrex coordinator`. What `--help` says of their flags comes from the
settings of the same names, which are only imported where a daemon's flags are read.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from imbrex.cli.options import ConfigOption, StateDir, WireOption, known_wire
from protos.rooms import imported

TextOption = Annotated[str | None, typer.Option()]
NumberOption = Annotated[int | None, typer.Option()]
FileOption = Annotated[Path | None, typer.Option(metavar="PEM")]
Either = Annotated[bool | None, typer.Option()]
_SETTINGS = {
    "worker": "worker.settings:WorkerSettings",
    "coordinator": "coordinator.settings:CoordinatorSettings",
}
JoinOnly = Annotated[bool, typer.Option("--join-only", help="Join, then exit without serving.")]


def add_daemons(front: typer.Typer) -> None:
    """Adds the commands."""
    front.command(cls=_Daemon)(worker)
    front.command(cls=_Daemon)(coordinator)


class _Daemon(TyperCommand):
    """A command whose flags say of themselves what the settings say."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The flags with their help."""
        fields = imported(_SETTINGS[self.name or ""]).model_fields
        found: list[Any] = super().get_params(ctx)
        for parameter in found:
            if parameter.name in fields and not parameter.help:
                parameter.help = _told(fields[parameter.name])
        return found


def _told(field: Any) -> str:
    """A setting's description, and its default where it is a word or a number."""
    parts = [f"{field.description}."]
    default = field.default
    if isinstance(default, tuple):
        parts = [f"{field.description}; repeatable."]
        default = ", ".join(default)
    if isinstance(default, float):
        default = f"{default:g}"
    if isinstance(default, str | int) and not isinstance(default, bool) and default != "":
        parts.append(f"[default: {default}]")
    return " ".join(parts)


def worker(  # noqa: PLR0913, PLR0917 - typer reads the flags from the parameters
    config: ConfigOption = None,
    host: TextOption = None,
    port: NumberOption = None,
    data_port: NumberOption = None,
    name: TextOption = None,
    engine: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    pace: Annotated[float | None, typer.Option(metavar="F")] = None,
    memory_mb: NumberOption = None,
    join: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="Join a cluster with this token from `imbrex cluster invite`; -: from stdin.",
        ),
    ] = None,
    join_only: JoinOnly = False,
    cluster: TextOption = None,
    mdns: Either = None,
    mdns_interfaces: Annotated[
        list[str] | None, typer.Option("--interface", metavar="ADDRESS")
    ] = None,
    state_dir: StateDir = None,
) -> None:
    """Compute for a coordinator, which finds this worker over mDNS.

    Every setting can also be given as an environment variable IMBREX_WORKER_*, or in a settings
    file. Other machines can reach the worker only after it has joined their cluster (--join, once).

    \b
    imbrex worker
    imbrex worker --pace 0.5
    imbrex worker --host 0.0.0.0 --join TOKEN
    """
    flags = said(locals()) | {"join": _token(join, join_only=join_only)}
    from worker.daemon import join_cluster
    from worker.daemon import main as run

    raise typer.Exit((join_cluster if join_only else run)(config, flags))


def coordinator(  # noqa: PLR0913, PLR0917 - typer reads the flags from the parameters
    config: ConfigOption = None,
    host: TextOption = None,
    port: NumberOption = None,
    grpc_port: NumberOption = None,
    workers: Annotated[list[str] | None, typer.Option("--worker", metavar="HOST:PORT")] = None,
    models: Annotated[list[str] | None, typer.Option("--model", metavar="NAME")] = None,
    model_repository: Annotated[Path | None, typer.Option(metavar="DIR")] = None,
    detector: TextOption = None,
    frigate_zmq: Annotated[
        list[str] | None, typer.Option("--frigate-zmq", metavar="tcp://ADDRESS:PORT")
    ] = None,
    strategy: TextOption = None,
    planners: Annotated[
        list[str] | None, typer.Option("--planner", metavar="MODULE:FUNCTION")
    ] = None,
    objective: Annotated[Literal["auto", "latency", "throughput"] | None, typer.Option()] = None,
    wire: WireOption = None,
    replan: Annotated[str | None, typer.Option(metavar="S|off")] = None,
    host_computes: Either = None,
    profile: Either = None,
    host_names: Annotated[list[str] | None, typer.Option("--host-name", metavar="NAME")] = None,
    tls: Either = None,
    tls_cert: FileOption = None,
    tls_key: FileOption = None,
    rate_per_s: Annotated[float | None, typer.Option("--rate", metavar="PER_S")] = None,
    cluster: TextOption = None,
    mdns: Either = None,
    interfaces: Annotated[list[str] | None, typer.Option("--interface", metavar="ADDRESS")] = None,
    state_dir: StateDir = None,
    join: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="Become another coordinator of a cluster, with a token of `imbrex cluster invite "
            "--coordinator`; only needed once. -: from stdin.",
        ),
    ] = None,
    join_only: JoinOnly = False,
) -> None:
    """Find workers, plan, and answer requests over HTTP.

    Every setting can also be an environment variable IMBREX_COORDINATOR_*, or a line of a file.

    \b
    imbrex coordinator
    imbrex coordinator --worker 192.168.1.20:8470 --model digits --model yolov2
    imbrex coordinator --config coordinator.toml --host 0.0.0.0
    imbrex coordinator --host 0.0.0.0 --join TOKEN
    """
    flags = said(locals()) | {"wire": known_wire(wire) or None}
    flags.pop("join", None)
    token = _token(join, join_only=join_only)
    import asyncio

    from coordinator.serving.daemon import serve
    from coordinator.settings import CoordinatorSettings
    from imbrex.described import find_planners_here
    from protos.daemon.files import alone_in
    from protos.daemon.logs import log_to_stderr

    find_planners_here()
    settings = CoordinatorSettings.load(config, flags)
    log_to_stderr(as_json=settings.log == "json", level=settings.log_level)
    if token:
        from coordinator.trust.open_state import JOIN
        from protos.rooms import imported

        with alone_in(settings.state_dir, "coordinator"):
            asyncio.run(imported(JOIN)(settings.state_dir, token))
    if not join_only:
        serve(settings)


def said(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The flags given to a daemon, by the names of the settings; lists become tuples."""
    given = {name: value for name, value in parameters.items() if value not in (None, [])}
    for own in ("config", "join_only"):
        given.pop(own, None)
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }


def _token(join: str | None, *, join_only: bool) -> str | None:
    """The token to join with."""
    if join_only and join is None:
        raise typer.BadParameter("needs --join", param_hint="--join-only")
    if join == "-" and not (join := sys.stdin.readline().strip()):
        raise typer.BadParameter("there is no token on standard input", param_hint="--join")
    return join
