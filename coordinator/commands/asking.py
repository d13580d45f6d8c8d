"""The commands that ask a running coordinator: `infer` and `status`. Nothing but typer is imported
here: `--help` stays fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coordinator.commands.options import URL, Json, Model, Save, Url


def add_asking(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(infer)
    app.command()(status)


def infer(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="A picture, or tensors as .npz.")],
    model: Model = "digits",
    url: Url = URL,
    save: Save = None,
    as_json: Json = False,
) -> None:
    """Sends an image to a coordinator and prints what it saw.

    \b
    imbrex infer sheet.png
    imbrex infer sheet.png --url http://pi-1:8460 --save answer.png
    imbrex infer inputs.npz --model vgg16 --json
    """
    from coordinator.commands import infer as command

    raise typer.Exit(command.infer(image, model, url, save=save, as_json=as_json))


def status(
    url: Url = URL,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Devices and models of a running coordinator.

    \b
    imbrex status
    imbrex status --watch
    imbrex status --url http://pi-1:8460 --json
    """
    if watch and as_json:
        raise typer.BadParameter("--watch shows a table; take --json without it")
    from coordinator.commands import status as command

    raise typer.Exit(command.watch(url) if watch else command.status(url, as_json=as_json))
