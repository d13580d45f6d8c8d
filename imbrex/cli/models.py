"""The commands about models. Only what a command needs is imported: `--help` stays fast."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from imbrex import terminal
from imbrex.cli.options import URL, Default, Json, ModelArgument, Name, PrecisionOption, Url
from protos.errors import BadRequest, NotFound

if TYPE_CHECKING:
    from models.catalogue.installed import Store
    from models.downloads import Download

_models = typer.Typer(help="List, inspect, add and remove models.", no_args_is_help=True)

TaskName = Literal["classification", "detection", "segmentation", "image-to-image", "tensor"]


def add_models(app: typer.Typer) -> None:
    """Adds the commands."""
    _models.command("list")(list_models)
    _models.command("show")(show)
    _models.command("add")(add)
    _models.command("confirm")(confirm)
    _models.command("pull")(pull)
    _models.command("quantise")(quantise)
    _models.command("remove")(remove)
    _models.command("default")(default)
    app.add_typer(_models, name="models")


def list_models(as_json: Json = False) -> None:
    """List the models that imbrex knows by name.

    \b
    imbrex models list
    imbrex models list --json
    """
    rows = [*_own(), *_installed()]
    offered = _offered({row["name"] for row in rows})
    if as_json:
        terminal.print_json({"models": rows, "downloads": offered})
        return
    made = terminal.table("model", "task", "version", "description")
    for row in rows:
        awaited = [f"{version} (not yet here)" for version in row["missing"]]
        version = ", ".join([*map(str, row["versions"]), *awaited]) or "-"
        task = f"{row['task']} (default)" if row["default"] else row["task"]
        task = task if row["versions"] or not awaited else "-"
        made.add_row(row["name"], task, version, row["description"])
    console = terminal.out()
    console.print(made)
    for download in offered:
        size = terminal.size(download["bytes"])
        console.print(f"imbrex models pull {download['name']}: {download['description']} ({size})")


def _row(
    name: str,
    description: str,
    task: str = "tensor",
    *,
    trained: bool = True,
    versions: Iterable[int] = (),
    missing: Iterable[int] = (),
    default: bool = False,
) -> dict[str, Any]:
    return {
        "name": name,
        "task": task,
        "trained": trained,
        "description": description,
        "versions": list(versions),
        "missing": list(missing),
        "default": default,
    }


def _own() -> list[dict[str, Any]]:
    from models.catalogue import catalogue

    entries = [catalogue.entry(name) for name in catalogue.names()]
    return [
        _row(entry.name, entry.description, entry.task, trained=entry.trained) for entry in entries
    ]


def _installed() -> list[dict[str, Any]]:
    """Models that were added or pulled; one whose sidecar is broken is listed so. `missing` are
    versions that the cluster has, and this coordinator does not have yet.
    """
    from coordinator.library.sharing import open_store
    from models.vision.sidecar import load, sidecar_path

    store = open_store(to_change=False)
    defaults = store.defaults()
    missing = store.missing()
    rows = []
    for name, model in store.installed().items():
        path = sidecar_path(model.latest)
        try:
            sidecar = load(path) if path.is_file() else None
            told = sidecar.description if sidecar else "takes tensors"
        except BadRequest as error:
            sidecar, told = None, error.cause
        task = sidecar.task if sidecar else "tensor"
        rows.append(
            _row(
                name,
                told,
                task,
                trained=sidecar.trained if sidecar else True,
                versions=model.versions,
                missing=missing.pop(name, []),
                default=defaults.get(task) == name,
            )
        )
    told = f"not yet here; asked for it: {', '.join(store.others()) or 'nobody'}"
    return rows + [_row(name, told, missing=versions) for name, versions in missing.items()]


def _offered(known: Collection[str]) -> list[dict[str, Any]]:
    from models.downloads import read_manifest

    return [
        {
            "name": download.name,
            "task": download.sidecar.task,
            "description": download.sidecar.description,
            "licence": download.sidecar.licence,
            "source": download.sidecar.source,
            "bytes": download.size_bytes,
        }
        for download in read_manifest().values()
        if download.name not in known
    ]


def show(
    model: ModelArgument,
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="The cluster to predict for. [default: four Pi 4s]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a model consists of, which parts are split (and why not), and the gain.

    \b
    imbrex models show yolov8n
    imbrex models show my-model.onnx@480x640 --cluster eight-pis.toml --json
    """
    from imbrex.cli import show as command

    raise typer.Exit(command.show(model, cluster, as_json=as_json))


def add(  # noqa: PLR0913, PLR0917 - typer reads the flags from the parameters
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An .onnx file.")],
    name: Annotated[str | None, typer.Option(help="[default: the file's]")] = None,
    task: Annotated[TaskName | None, typer.Option(help="The model's task.")] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|a,b,c", help="The classes: a file with one per line, or a list."
        ),
    ] = None,
    pixels: Annotated[
        Literal["imagenet", "unit", "signed", "bytes"] | None,
        typer.Option(
            help="How the model takes pixels: ImageNet's mean and deviation, 0 to 1, -1 to 1, "
            "0 to 255."
        ),
    ] = None,
    resize: Annotated[
        Literal["letterbox", "stretch", "centre-crop"] | None,
        typer.Option(help="How pictures are resized. [default: depends on the task]"),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="HxW", help="The input size, where the file leaves it open."),
    ] = None,
    sidecar: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="A file with all of the above. [default: FILE.json beside FILE]",
        ),
    ] = None,
    precision: PrecisionOption = None,
    licence: Annotated[str, typer.Option(help="Its licence.")] = "not said",
    source: Annotated[str | None, typer.Option(help="Where it comes from.")] = None,
    default: Default = False,
    as_json: Json = False,
) -> None:
    """Add a model of your own: a copy, with everything needed to use it.

    What the file does not say is guessed from its shapes, its operators and its exporter's
    metadata, and printed as assumed until you confirm it (`imbrex models confirm`). On a terminal
    you are asked for the rest; without one, that is an error. A network of which nothing says what
    it is for is added as --task tensor: its outputs are returned as they are. Adding a name again
    makes a new version.

    \b
    imbrex models add best.onnx --name yard            (as Ultralytics exports it)
    imbrex models add birds.onnx --labels birds.txt --pixels imagenet
    imbrex models add roads.onnx --task segmentation --labels road,grass,sky --pixels unit
    """
    from imbrex.cli import adding as command
    from models.graph.sizes import split_name

    wanted = split_name(f"{file}@{size}")[1] if size else None
    if size and wanted is None:
        raise typer.BadParameter(
            f"{size!r} is not of the form HEIGHTxWIDTH, for example 480x640", param_hint="--size"
        )
    said = command.Said(
        name, task, labels, pixels, resize, wanted, sidecar, licence, source, precision
    )
    raise typer.Exit(command.add(file, said, default=default, as_json=as_json))


def confirm(name: Name, as_json: Json = False) -> None:
    """Confirm what was assumed of a model when it was added: answers say so until then.

    If an assumption is wrong, add the model again with the option that says what is right.

    \b
    imbrex models confirm yard
    """
    from imbrex.cli import adding as command

    raise typer.Exit(command.confirm(name, as_json=as_json))


def pull(
    name: Name,
    base_url: Annotated[
        str, typer.Option(envvar="IMBREX_MODELS_URL", help="The server of the manifest's files.")
    ] = "https://huggingface.co",
    manifest: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json", help="Another list of models, in the format of imbrex's own."
        ),
    ] = None,
    default: Default = False,
    as_json: Json = False,
) -> None:
    """Download a trained model, verify it, and add it.

    An interrupted download continues where it stopped.

    \b
    imbrex models pull tinyyolov2-8 --default
    imbrex models pull mobilenetv2-12 --base-url http://mirror.home/models
    """
    from coordinator.library.sharing import open_store
    from imbrex.cli.download import is_right
    from models import downloads

    wanted = downloads.find(name, manifest or downloads.MANIFEST)
    store = open_store()
    there = store.find(wanted.name)
    versions = there.versions if there is not None else {}
    # An installed version with the same content, if any.
    version = next((n for n, path in versions.items() if is_right(path, wanted.sha256)), None)
    fetched = version is None
    if version is None:
        version = _fetch(store, wanted, base_url)
    if default:
        store.choose(wanted.sidecar.task, name)
    terminal.tell(
        {"name": name, "version": version, "task": wanted.sidecar.task, "fetched": fetched},
        f"{name}, version {version}" + ("" if fetched else ": already installed") + "\n"
        f"{wanted.sidecar.description}; licence {wanted.sidecar.licence}\n"
        f"try it: imbrex infer PICTURE --model {name}",
        as_json=as_json,
    )


def _fetch(store: "Store", wanted: "Download", base_url: str) -> int:
    """Downloads a model, checks it, and adds it to the store; its version."""
    from imbrex.cli.download import RemoteFile, download
    from models.catalogue import catalogue
    from models.catalogue.installed import MODEL_FILE
    from models.onnx_file.importer import graph_of
    from models.vision.predictions import check_outputs
    from models.vision.sidecar import dump, sidecar_path

    # Named by content, so that a file of the same name from another manifest is not continued.
    file = store.incoming() / f"{wanted.sha256[:16]}.onnx"
    if not file.exists():
        there = RemoteFile(
            f"{base_url.rstrip('/')}/{wanted.file}", wanted.size_bytes, wanted.sha256
        )
        with terminal.transfer_bar(wanted.name, wanted.size_bytes) as told:
            download(there, file, told)
    sidecar_path(file).write_text(dump(wanted.sidecar), encoding="utf-8")
    with terminal.waiting(f"checking {wanted.name}"):
        graph = graph_of(catalogue.load(file).stored, wanted.name)
        check_outputs(wanted.sidecar, {name: graph.shape(name) for name in graph.outputs})

    def write(folder: Path) -> None:
        file.replace(folder / MODEL_FILE)
        sidecar_path(file).replace(sidecar_path(folder / MODEL_FILE))

    return store.put(wanted.name, write)


def quantise(
    model: ModelArgument,
    images: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="About 100 pictures like those that the model will see."
        ),
    ],
    name: Annotated[str | None, typer.Option(help="[default: MODEL-int8]")] = None,
    at_most: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Time limit for finding layers that should stay in float.",
        ),
    ] = 120.0,
    url: Url = URL,
    as_json: Json = False,
) -> None:
    """Make an 8-bit version of a model: faster on most processors, and less exact.

    It is calibrated on most of the pictures and compared with the float model on the others.
    Layers that lose the most accuracy stay in float. If the coordinator is running, both models
    are also compared on the cluster. If there are text files in YOLO's format beside a detector's
    pictures (or in labels/), both models' mAP is measured.

    \b
    imbrex models quantise yard --images /var/lib/camera
    imbrex models quantise yard --images pictures --name yard-fast --json
    """
    from imbrex.cli import quantising as command

    raise typer.Exit(command.quantise(model, images, name, at_most, url, as_json=as_json))


def remove(
    name: Name,
    version: Annotated[
        int | None, typer.Option(min=1, help="Only this version. [default: all of them]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Remove a model that was added or pulled.

    \b
    imbrex models remove tinyyolov2-8
    imbrex models remove yard --version 1
    """
    from coordinator.library.sharing import open_store
    from models.catalogue import catalogue

    if name in catalogue.names():
        raise BadRequest(
            cause=f"{name!r} is a built-in model", cure="Built-in models cannot be removed"
        )
    gone = open_store().remove(name, version)
    told = f"removed {name}, version {', '.join(map(str, gone))}"
    terminal.tell({"name": name, "removed": list(gone)}, told, as_json=as_json)


def default(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A model that was added. [default: show the defaults]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose the model that answers for a task when a request names none, as DeepStack's do.

    \b
    imbrex models default
    imbrex models default tinyyolov2-8
    """
    from coordinator.library.sharing import open_store
    from models.catalogue import catalogue

    store = open_store(to_change=name is not None)
    if name is not None:
        if store.find(name) is None:
            raise NotFound(
                cause=f"no model {name!r} was added or downloaded",
                cure="See `imbrex models list`; get one with `imbrex models pull` or `add`",
            )
        sidecar = catalogue.load(name).sidecar
        store.choose(sidecar.task if sidecar else "tensor", name)
    chosen = store.defaults()
    made = terminal.table("task", "model")
    for task, model in chosen.items():
        made.add_row(task, model)
    terminal.tell({"defaults": chosen}, made if chosen else "no defaults yet", as_json=as_json)
