"""`imbrex models list`: the models that imbrex knows by name, and those it can download."""

from collections.abc import Iterable
from typing import Any

from coordinator.library.sharing import open_store
from imbrex import terminal
from models.catalogue import catalogue
from models.downloads import read_manifest
from models.vision.head import VisionTask
from models.vision.sidecar import load, sidecar_path
from protos.errors import BadRequest


def list_models(*, as_json: bool) -> int:
    """Prints the catalogue."""
    rows = [*_own(), *_installed()]
    offered = _offered({row["name"] for row in rows})
    if as_json:
        terminal.print_json({"models": rows, "downloads": offered})
        return 0
    made = terminal.table("model", "task", "version", "description")
    for row in rows:
        awaited = [f"{each} (not yet here)" for each in row["missing"]]
        version = ", ".join([*map(str, row["versions"]), *awaited]) or "-"
        task = f"{row['task']} (default)" if row["default"] else row["task"]
        task = task if row["versions"] or not awaited else "-"
        made.add_row(row["name"], task, version, row["description"])
    console = terminal.out()
    console.print(made)
    for each in offered:
        size = terminal.size(each["bytes"])
        console.print(f"imbrex models pull {each['name']}: {each['description']} ({size})")
    return 0


def _row(
    name: str,
    description: str,
    task: VisionTask = "tensor",
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
    entries = [catalogue.entry(name) for name in catalogue.names()]
    return [_row(each.name, each.description, each.task, trained=each.trained) for each in entries]


def _installed() -> list[dict[str, Any]]:
    """Models that were added or pulled; one whose sidecar is broken is listed so. `missing` are
    versions that the cluster has, and this coordinator does not have yet.
    """
    store = open_store(to_change=False)
    defaults = store.defaults()
    missing = store.missing()
    rows = []
    for name, each in store.installed().items():
        path = sidecar_path(each.latest)
        try:
            sidecar = load(path) if path.is_file() else None
            told = sidecar.description if sidecar else "takes tensors"
        except BadRequest as error:
            sidecar, told = None, error.cause
        task: VisionTask = sidecar.task if sidecar else "tensor"
        rows.append(
            _row(
                name,
                told,
                task,
                trained=sidecar.trained if sidecar else True,
                versions=each.versions,
                missing=missing.pop(name, []),
                default=defaults.get(task) == name,
            )
        )
    told = f"not yet here; asked for it: {', '.join(store.others()) or 'nobody'}"
    return rows + [_row(name, told, missing=versions) for name, versions in missing.items()]


def _offered(known: set[str]) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "task": each.sidecar.task,
            "description": each.sidecar.description,
            "licence": each.sidecar.licence,
            "source": each.sidecar.source,
            "bytes": each.size_bytes,
        }
        for each in read_manifest().values()
        if each.name not in known
    ]
