"""The flags of `imbrex watch`. Nothing but typer is imported here: `--help` stays fast."""

from contextlib import ExitStack
from typing import Annotated

import typer

from imbrex.cli.options import URL, ModelOption, Url
from protos.rooms import is_installed

UNNAMED = "watch"


def add_watch(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(hidden=not is_installed("imbrex.watch"))(watch)


def watch(  # noqa: PLR0913, PLR0917 - typer reads the flags from the parameters
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A folder, or a camera's URL: http, rtsp. A password that is not in it is "
            "taken from IMBREX_CAMERA_PASSWORD.",
        ),
    ],
    model: ModelOption = "digits",
    url: Url = URL,
    existing: Annotated[
        bool, typer.Option("--existing", help="Also process files that are in the folder already.")
    ] = False,
    at_once: Annotated[
        int, typer.Option(min=1, max=64, help="The number of frames in flight at a time.")
    ] = 1,
    frames: Annotated[
        int,
        typer.Option(
            min=0, help="Exit after this many frames. [default: never]", show_default=False
        ),
    ] = 0,
    per_second: Annotated[
        float,
        typer.Option(
            min=0,
            help="The maximum number of frames per second. [default: no limit]",
            show_default=False,
        ),
    ] = 0.0,
    mqtt: Annotated[
        str | None,
        typer.Option(
            metavar="mqtt://USER@HOST/TOPIC",
            help="Publish answers, with Home Assistant's discovery; the password is read from "
            "IMBREX_MQTT_PASSWORD.",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="The name of this watch, also on MQTT.")] = UNNAMED,
    presence: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL", help="Publish an MQTT presence sensor for this label; repeatable."
        ),
    ] = None,
) -> None:
    """Watch a folder or a camera: print a line of JSON for every frame.

    The newest frame goes first, and a camera's older ones are dropped, so that answers are about
    what is there now. A stream that breaks is reopened. Rate and latency are shown on standard
    error.

    \b
    imbrex watch /srv/scans --model digits
    imbrex watch rtsp://yard.local/stream1 --model tinyyolov2-8 --per-second 5
    imbrex watch http://yard.local/mjpg --mqtt mqtt://imbrex@hub.local --name yard --presence person
    """
    if presence and mqtt is None:
        raise typer.BadParameter("needs --mqtt", param_hint="--presence")
    if existing and "://" in source:
        raise typer.BadParameter("is for folders", param_hint="--existing")
    from coordinator.library.naming import public_name
    from imbrex.watch import run as command

    called = "" if name == UNNAMED else name
    found = command.source_of(source, existing=existing, called=called)
    wanted = command.Watched(url, public_name(model), at_once, frames, per_second)
    with ExitStack() as opened:
        sinks: list[command.Sink] = []
        if mqtt is not None:
            from imbrex.watch.mqtt import Broker, Publisher

            publisher = Publisher(Broker.of(mqtt), name, model, tuple(presence or ()))
            sinks.append(opened.enter_context(publisher))
        raise typer.Exit(command.watch(found, wanted, sinks))
