"""`imbrex coordinator`: its flags. Nothing but typer is imported here: `--help` stays fast."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from imbrex.cli.options import (
    Cluster,
    Config,
    Host,
    Interfaces,
    Mdns,
    StateDir,
    Strategy,
    WireOption,
    known_wire,
    said,
)


def add_daemon(front: typer.Typer) -> None:
    """Adds the command."""
    front.command()(coordinator)


def coordinator(  # noqa: PLR0913, PLR0917 - typer reads the flags from the parameters
    config: Config = None,
    host: Host = None,
    port: Annotated[
        int | None, typer.Option(help="The HTTP port; 0: any free one. [default: 8460]")
    ] = None,
    grpc_port: Annotated[
        int | None,
        typer.Option(help="The gRPC port of the Open Inference Protocol. [default: 8461]"),
    ] = None,
    workers: Annotated[
        list[str] | None,
        typer.Option(
            "--worker", metavar="HOST:PORT", help="A worker that mDNS can't find; repeatable."
        ),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="A model to load at start; repeatable."),
    ] = None,
    model_repository: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="More models, in Triton's layout: NAME/1/model.onnx."),
    ] = None,
    detector: Annotated[
        str | None, typer.Option(help="The model that answers Frigate and Blue Iris (DeepStack).")
    ] = None,
    frigate_zmq: Annotated[
        list[str] | None,
        typer.Option(
            "--frigate-zmq",
            metavar="tcp://ADDRESS:PORT",
            help="Serve Frigate's zmq detectors at this address; repeatable.",
        ),
    ] = None,
    strategy: Strategy = None,
    planners: Annotated[
        list[str] | None,
        typer.Option(
            "--planner",
            metavar="MODULE:FUNCTION",
            help="A strategy that requests may name; repeatable.",
        ),
    ] = None,
    objective: Annotated[
        Literal["auto", "latency", "throughput"] | None,
        typer.Option(help="Under load: favour latency, or images per second. [default: auto]"),
    ] = None,
    wire: WireOption = None,
    replan: Annotated[
        str | None,
        typer.Option(metavar="S|off", help="Replan every S seconds, or never. [default: 60]"),
    ] = None,
    host_computes: Annotated[
        bool | None,
        typer.Option(
            "--host-computes/--no-host-computes", help="Whether this machine also computes."
        ),
    ] = None,
    profile: Annotated[
        bool | None,
        typer.Option(
            "--profile/--no-profile", help="Whether to measure devices when they are idle."
        ),
    ] = None,
    host_names: Annotated[
        list[str] | None,
        typer.Option(
            "--host-name",
            metavar="NAME",
            help="Another host name that clients may use; repeatable.",
        ),
    ] = None,
    tls: Annotated[
        bool | None,
        typer.Option(
            "--tls/--no-tls",
            help="Serve clients over TLS with a certificate of the cluster's authority.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="Serve clients over TLS with this certificate."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="PEM", help="The certificate's key.")
    ] = None,
    rate_per_s: Annotated[
        float | None,
        typer.Option(
            "--rate",
            metavar="PER_S",
            help="Requests per second from one key or address; 0: no limit. [default: 200]",
        ),
    ] = None,
    cluster: Cluster = None,
    mdns: Mdns = None,
    interfaces: Interfaces = None,
    state_dir: StateDir = None,
    join: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="Become another coordinator of a cluster, with a token of `imbrex cluster invite "
            "--coordinator`; only needed once. `-`: read it from standard input.",
        ),
    ] = None,
    join_only: Annotated[
        bool, typer.Option("--join-only", help="Join, and exit without serving.")
    ] = False,
) -> None:
    """Find workers, plan, and answer requests over HTTP.

    Every setting can also be an environment variable IMBREX_COORDINATOR_*, or a line of a file.

    \b
    imbrex coordinator
    imbrex coordinator --worker 192.168.1.20:8470 --model digits --model yolov2
    imbrex coordinator --config coordinator.toml --host 0.0.0.0
    imbrex coordinator --host 0.0.0.0 --join TOKEN
    """
    if join_only and join is None:
        raise typer.BadParameter("needs --join", param_hint="--join-only")
    flags = said(locals()) | {"wire": known_wire(wire) or None}
    for own in ("join", "join_only"):
        flags.pop(own, None)
    if join == "-":
        join = sys.stdin.readline().strip()
    from imbrex.cli import serve as command

    raise typer.Exit(command.serve(config, flags, join or "", join_only=join_only))
