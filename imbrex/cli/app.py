"""The command line of imbrex: a thin layer over both daemons and the tools.

Commands import other packages lazily: `--help` stays fast, and `imbrex worker` runs with only a
worker's libraries installed.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from coordinator.cluster.children import follow_parent
from imbrex.cli.asking import add_asking
from imbrex.cli.cluster import add_cluster
from imbrex.cli.daemon import add_daemon
from imbrex.cli.models import add_models
from imbrex.cli.options import (
    Cluster,
    Config,
    Host,
    Interfaces,
    Json,
    Mdns,
    Model,
    PlanFile,
    Save,
    StateDir,
    Strategy,
    WireOption,
    known_wire,
    said,
)
from imbrex.cli.planning import add_planning
from imbrex.cli.watching import add_watch
from protos.ciphers import prefer_quick_cipher
from protos.errors import BadConfiguration, ImbrexError
from protos.extras import line_for_extra

# The modules that only extras install, by import name.
EXTRAS = {"av": "watch", "paho": "mqtt"} | dict.fromkeys(
    (
        "fastapi",
        "httpx",
        "nats",
        "PIL",
        "grpc_reflection",
        "prometheus_client",
        "python_multipart",
        "sklearn",
        "uvicorn",
        "zmq",
    ),
    "coordinator",
)

# Allocations before the next garbage collection. Planners make a million small objects and hardly a
# cycle: with Python's 700, collections take a third of their time. This many hold some 10 MB.
YOUNG_OBJECTS = 50_000

app = typer.Typer(
    name="imbrex",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        typer.echo(f"imbrex {metadata.version('imbrex')}")
        raise typer.Exit


@app.callback()
def _front(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Run one CNN inference across the Raspberry Pis of a home: faster, with the same answer.

    \b
    imbrex demo                      try it: a whole cluster on this machine
    imbrex worker                    on every device that computes
    imbrex coordinator               on the device that answers
    imbrex infer sheet.png           ask it
    """


@app.command()
def demo(  # noqa: PLR0913, PLR0917 - typer reads the flags from the parameters
    image: Annotated[
        Path | None,
        typer.Argument(metavar="IMAGE", help="A picture. [default: one that comes with imbrex]"),
    ] = None,
    model: Model = "digits",
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="The number of worker processes.")
    ] = 4,
    strategy: Strategy = None,
    plan: PlanFile = None,
    wire: WireOption = None,
    like: Annotated[
        Literal["pi3", "pi4", "pi5"],
        typer.Option(help="Emulate this Raspberry Pi, in slow motion."),
    ] = "pi4",
    native: Annotated[
        bool, typer.Option("--native", help="Use this machine as it is instead.")
    ] = False,
    profile: Annotated[
        bool,
        typer.Option("--profile/--no-profile", help="Measure the workers before planning."),
    ] = True,
    curve: Annotated[
        bool, typer.Option("--curve", help="Draw the time on 1, 2, ... devices.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also show the workers, the plan and all times.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the cluster running until Ctrl-C.")
    ] = False,
    save: Save = None,
    as_json: Json = False,
) -> None:
    """Start a whole cluster on this machine and run one image through it.

    Its workers are real processes that are found over mDNS on loopback, slowed down to the pace of
    a Raspberry Pi; messages and the network cost what they cost there. Shows how long one device
    takes, how long all of them take together, and whether the answer is the same.

    \b
    imbrex demo
    imbrex demo --like pi5 --curve
    imbrex demo --save answer.png
    imbrex demo --model vgg16 --strategy aofl --workers 4 --json
    imbrex demo --plan plan.json        (a plan for devices called worker-1, worker-2, ...)
    """
    if plan is not None and strategy is not None:
        raise typer.BadParameter("a plan has its own strategy", param_hint="--plan")
    allowed = known_wire(wire)
    from imbrex.demo.run import Demo, run

    emulated = "" if native else like
    chosen = strategy or "auto"
    wanted = Demo(
        image,
        model,
        workers,
        chosen,
        emulated,
        profile,
        keep,
        save,
        plan,
        allowed,
        curve,
        explain,
    )
    raise typer.Exit(run(wanted, as_json=as_json))


@app.command()
def worker(  # noqa: PLR0913, PLR0917 - typer reads the flags from the parameters
    config: Config = None,
    host: Host = None,
    port: Annotated[
        int | None, typer.Option(help="The port to listen on; 0: any free one. [default: 8470]")
    ] = None,
    data_port: Annotated[
        int | None,
        typer.Option(help="The port of the data plane between workers. [default: port + 1]"),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The name shown to people. [default: the host name]")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The inference engine; auto: the fastest that computes correctly. [default: auto]",
        ),
    ] = None,
    pace: Annotated[
        float | None,
        typer.Option(metavar="F", help="Use only this fraction of a core, for example 0.4."),
    ] = None,
    memory_mb: Annotated[int | None, typer.Option(help="The memory it may use, in MB.")] = None,
    join: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="Join a cluster with this token from `imbrex cluster invite`; -: from stdin.",
        ),
    ] = None,
    join_only: Annotated[
        bool, typer.Option("--join-only", help="Join, then exit without computing.")
    ] = False,
    cluster: Cluster = None,
    mdns: Mdns = None,
    mdns_interfaces: Interfaces = None,
    state_dir: StateDir = None,
) -> None:
    """Compute for a coordinator, which finds this worker over mDNS.

    Every setting can also be an environment variable IMBREX_WORKER_*, or a line of a file. To
    be reached by other machines it must have joined their cluster once.

    \b
    imbrex worker
    imbrex worker --pace 0.5
    imbrex worker --host 0.0.0.0 --join TOKEN
    """
    if join_only and join is None:
        raise typer.BadParameter("needs --join", param_hint="--join-only")
    flags = said(locals())
    del flags["join_only"]
    if join == "-":
        flags["join"] = sys.stdin.readline().strip()
    from worker.daemon import join_cluster
    from worker.daemon import main as run

    raise typer.Exit((join_cluster if join_only else run)(config, flags))


add_daemon(app)
add_asking(app)
add_planning(app)
add_watch(app)
add_models(app)
add_cluster(app)


def main() -> None:
    """The entry point: exit code 0 done, 1 failed, 2 wrong usage."""
    follow_parent()
    prefer_quick_cipher(os.environ)
    gc.set_threshold(YOUNG_OBJECTS)
    try:
        app(prog_name="imbrex")
    except ImbrexError as error:
        _fail(error)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        _fail(
            BadConfiguration(
                cause=f"this command needs {error.name}, which is not installed",
                cure=line_for_extra(extra),
            )
        )


def _fail(error: ImbrexError) -> None:
    """Prints cause and cure; with --json, the error as JSON too."""
    if "--json" in sys.argv:
        import json

        fields: dict[str, Any] = {"code": error.code, "cause": error.cause, "cure": error.cure}
        print(json.dumps({"error": fields}))
    print(f"error: {error.cause}\ncure:  {error.cure}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
