"""The commands about models. Nothing but typer is imported here: `--help` stays fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from imbrex.cli.options import Default, Json, ModelArgument, Name

_models = typer.Typer(help="The networks that imbrex knows by name.", no_args_is_help=True)

TaskName = Literal["classification", "detection", "segmentation", "image-to-image", "tensor"]


def add_models(app: typer.Typer) -> None:
    """Adds the commands."""
    _models.command("list")(list_models)
    _models.command("show")(show)
    _models.command("add")(add)
    _models.command("pull")(pull)
    _models.command("remove")(remove)
    _models.command("default")(default)
    app.add_typer(_models, name="models")


def list_models(as_json: Json = False) -> None:
    """The catalogue.

    \b
    imbrex models list
    imbrex models list --json
    """
    from imbrex.cli import catalogue as command

    raise typer.Exit(command.list_models(as_json=as_json))


def show(
    model: ModelArgument,
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Predict for this cluster. [default: four Pis 3]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """What a model consists of, what of it is split and what not and why, and what that gains.

    \b
    imbrex models show yolov8n
    imbrex models show my-model.onnx@480x640 --cluster eight-pis.toml --json
    """
    from imbrex.cli import show as command

    raise typer.Exit(command.show(model, cluster, as_json=as_json))


def add(  # noqa: PLR0913, PLR0917 - typer reads the flags from the parameters
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An .onnx file.")],
    name: Annotated[str | None, typer.Option(help="[default: the file's]")] = None,
    task: Annotated[TaskName | None, typer.Option(help="What it is for.")] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|a,b,c", help="Its classes: a .txt with one per line, or a list."
        ),
    ] = None,
    pixels: Annotated[
        Literal["imagenet", "unit", "signed", "bytes"] | None,
        typer.Option(
            help="What it was trained on: ImageNet's mean and deviation, 0 to 1, -1 to 1, 0 to 255."
        ),
    ] = None,
    resize: Annotated[
        Literal["letterbox", "stretch", "centre-crop"] | None,
        typer.Option(help="How a picture is fitted. [default: by the task]"),
    ] = None,
    size: Annotated[
        str | None, typer.Option(metavar="HxW", help="For what the file leaves open.")
    ] = None,
    sidecar: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="All of that. [default: FILE.json beside FILE]"),
    ] = None,
    licence: Annotated[str, typer.Option(help="Under which it may be used.")] = "not said",
    source: Annotated[str | None, typer.Option(help="Where it is from.")] = None,
    default: Default = False,
    as_json: Json = False,
) -> None:
    """Adds a model of yours: a copy, with what is needed to use it.

    What the file does not say is guessed from its shapes and its exporter's metadata; what cannot
    be guessed is asked on a terminal, and is an error elsewhere. A name that is there already
    gets another version.

    \b
    imbrex models add best.onnx --name yard            (as Ultralytics exports it)
    imbrex models add birds.onnx --labels birds.txt --pixels imagenet
    imbrex models add roads.onnx --task segmentation --labels road,grass,sky --pixels unit
    """
    from imbrex.cli import adding as command
    from models.sizes import split_name

    wanted = split_name(f"{file}@{size}")[1] if size else None
    if size and wanted is None:
        raise typer.BadParameter(f"{size!r} is not height x width, as 480x640", param_hint="--size")
    said = command.Said(name, task, labels, pixels, resize, wanted, sidecar, licence, source)
    raise typer.Exit(command.add(file, said, default=default, as_json=as_json))


def pull(
    name: Name,
    base_url: Annotated[
        str,
        typer.Option(envvar="IMBREX_MODELS_URL", help="Where the manifest's files are."),
    ] = "https://huggingface.co",
    manifest: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Other models than ours, in the same form."),
    ] = None,
    default: Default = False,
    as_json: Json = False,
) -> None:
    """Downloads a trained model, checks that it is the right one, and adds it.

    A download that broke off goes on where it stopped.

    \b
    imbrex models pull tinyyolov2-8 --default
    imbrex models pull mobilenetv2-12 --base-url http://mirror.home/models
    """
    from imbrex.cli import pulling as command

    raise typer.Exit(command.pull(name, base_url, manifest, default=default, as_json=as_json))


def remove(
    name: Name,
    version: Annotated[
        int | None, typer.Option(min=1, help="Only this one. [default: all of them]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Removes a model that was added or pulled.

    \b
    imbrex models remove tinyyolov2-8
    imbrex models remove yard --version 1
    """
    from imbrex.cli import pulling as command

    raise typer.Exit(command.remove(name, version, as_json=as_json))


def default(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="An added model. [default: show them]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Which model answers for a task where none is named: for detection, DeepStack's clients.

    \b
    imbrex models default
    imbrex models default tinyyolov2-8
    """
    from imbrex.cli import pulling as command

    raise typer.Exit(command.choose(name, as_json=as_json))
