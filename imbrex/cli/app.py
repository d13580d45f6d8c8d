"""The command line of imbrex: a thin layer over both daemons and the tools.

Commands import other packages lazily: `--help` stays fast, and `imbrex worker` runs with only a
worker's libraries installed.
"""

import atexit
import errno
import gc
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from imbrex.cli.asking import add_asking
from imbrex.cli.cluster import add_cluster
from imbrex.cli.daemons import add_daemons
from imbrex.cli.models import add_models
from imbrex.cli.options import (
    Json,
    ModelOption,
    PlanFileOption,
    Save,
    StrategyOption,
    WireOption,
    known_wire,
)
from imbrex.cli.planning import add_planning
from imbrex.cli.watching import add_watch
from protos.daemon.extras import line_for_extra
from protos.daemon.parent import follow_parent
from protos.daemon.texts import write_anything
from protos.errors import BadConfiguration, ImbrexError
from protos.rooms import OWN, is_installed, lacking
from protos.trust.ciphers import prefer_quick_cipher

# The modules that only extras install, by import name.
EXTRAS = {"av": "watch", "paho": "mqtt"} | dict.fromkeys(
    (
        "fastapi",
        "httpx",
        "nats",
        "PIL",
        "grpc_reflection",
        "h11",
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

_OF_FILES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "Run this as its owner, or as root"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Free some space on its disk"),
    **dict.fromkeys(
        (errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
        "Name another place, which this user may write",
    ),
    errno.EIO: "Check its disk (`dmesg` says what fails), or name another place",
}

app = typer.Typer(
    name="imbrex", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
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


@app.command(hidden=not is_installed("imbrex.demo"))
def demo(  # noqa: PLR0913, PLR0917 - typer reads the flags from the parameters
    image: Annotated[
        Path | None,
        typer.Argument(metavar="IMAGE", help="A picture. [default: one that comes with imbrex]"),
    ] = None,
    model: ModelOption = "digits",
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="The number of worker processes.")
    ] = 4,
    strategy: StrategyOption = None,
    plan: PlanFileOption = None,
    wire: WireOption = None,
    like: Annotated[
        Literal["pi3", "pi4", "pi5"],
        typer.Option(help="Emulate this Raspberry Pi, in slow motion."),
    ] = "pi4",
    native: Annotated[
        bool, typer.Option("--native", help="Use this machine as it is instead.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile/--no-profile", help="Measure the workers before planning.")
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
        image, model, workers, chosen, emulated, profile, keep, save, plan, allowed, curve, explain
    )
    raise typer.Exit(run(wanted, as_json=as_json))


add_daemons(app)
add_asking(app)
add_planning(app)
add_watch(app)
add_models(app)
add_cluster(app)


def main() -> None:
    """The entry point: exit code 0 done, 1 failed, 2 wrong usage."""
    write_anything()
    follow_parent()
    prefer_quick_cipher(os.environ)
    gc.set_threshold(YOUNG_OBJECTS)
    # Python ends with full collections, which free what the process's end frees anyway.
    atexit.register(gc.freeze)
    try:
        app(prog_name="imbrex")
    except ImbrexError as error:
        _fail(error)
    except OSError as error:
        if error.errno not in _OF_FILES:
            raise
        what = error.filename or "a file"
        _fail(
            BadConfiguration(
                cause=f"{what} cannot be used ({error.strerror})", cure=_OF_FILES[error.errno]
            )
        )
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in OWN:
            _fail(lacking(str(error.name)))
        extra = EXTRAS.get(package)
        if extra is None:
            raise
        _fail(
            BadConfiguration(
                cause=f"this command needs {error.name}, which is not installed",
                cure=line_for_extra(extra),
            )
        )


def _fail(error: ImbrexError) -> NoReturn:
    """Prints cause and cure; with --json, the error as JSON too."""
    if "--json" in sys.argv:
        import json

        fields: dict[str, Any] = {"code": error.code, "cause": error.cause, "cure": error.cure}
        print(json.dumps({"error": fields}))
    print(f"error: {error.cause}\ncure:  {error.cure}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
