"""`imbrex models pull`, `remove` and `default`."""

from __future__ import annotations

from pathlib import Path

from coordinator.library.sharing import open_store
from imbrex import terminal
from imbrex.cli.download import RemoteFile, download, is_right
from models import downloads
from models.catalogue import catalogue
from models.catalogue.installed import MODEL_FILE, Store
from models.downloads import Download
from models.onnx_file.importer import graph_of
from models.vision.predictions import check_outputs
from models.vision.sidecar import dump, sidecar_path
from protos.errors import BadRequest, NotFound


def pull(name: str, base_url: str, manifest: Path | None, *, default: bool, as_json: bool) -> int:
    """Downloads a model, checks it, and adds it to the store."""
    wanted = downloads.find(name, manifest or downloads.MANIFEST)
    store = open_store()
    version = _there(store, wanted)
    fetched = version is None
    if version is None:
        version = _fetch(store, wanted, base_url)
    if default:
        store.choose(wanted.sidecar.task, name)
    if as_json:
        told = {"name": name, "version": version, "task": wanted.sidecar.task, "fetched": fetched}
        terminal.print_json(told)
        return 0
    console = terminal.out()
    console.print(f"{name}, version {version}" + ("" if fetched else ": already installed"))
    console.print(f"{wanted.sidecar.description}; licence {wanted.sidecar.licence}")
    console.print(f"try it: imbrex infer PICTURE --model {name}")
    return 0


def remove(name: str, version: int | None, *, as_json: bool) -> int:
    """Removes an added or pulled model."""
    if name in catalogue.names():
        raise BadRequest(
            cause=f"{name!r} is a built-in model", cure="Built-in models cannot be removed"
        )
    gone = open_store().remove(name, version)
    if as_json:
        terminal.print_json({"name": name, "removed": list(gone)})
    else:
        terminal.out().print(f"removed {name}, version {', '.join(map(str, gone))}")
    return 0


def choose(name: str | None, *, as_json: bool) -> int:
    """Shows the default model of each task, or makes a model the default of its task."""
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
    if as_json:
        terminal.print_json({"defaults": chosen})
        return 0
    made = terminal.table("task", "model")
    for task, model in chosen.items():
        made.add_row(task, model)
    terminal.out().print(made if chosen else "no defaults yet")
    return 0


def _there(store: Store, wanted: Download) -> int | None:
    """The installed version with the same content as this download, if any."""
    found = store.find(wanted.name)
    if found is None:
        return None
    return next((n for n, path in found.versions.items() if is_right(path, wanted.sha256)), None)


def _fetch(store: Store, wanted: Download, base_url: str) -> int:
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
        check_outputs(wanted.sidecar, {each: graph.shape(each) for each in graph.outputs})

    def write(folder: Path) -> None:
        file.replace(folder / MODEL_FILE)
        sidecar_path(file).replace(sidecar_path(folder / MODEL_FILE))

    return store.put(wanted.name, write)
