"""Trained networks that can be downloaded: the location, the hash and the sidecar of each.

Contents are pinned by SHA-256, so a file may come from any mirror: its location is relative to a
base URL. `labels` names a list beside this file that replaces the sidecar's; a model without labels
is assumed to have been trained on one of these lists.
"""

import difflib
import json
from dataclasses import dataclass as plain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from models.vision.sidecar import Sidecar, read_sidecar
from protos.daemon.documents import DOCUMENT, Integer, Problem, String, read
from protos.daemon.files import read_text
from protos.errors import BadConfiguration, NotFound

MANIFEST = Path(__file__).parent / "manifest.json"
DataSet = Literal["coco", "imagenet", "voc"]
OWN = "sidecar"  # the labels are in the sidecar itself


def _no_way_up(file: str) -> str:
    if ".." in file:
        raise PydanticCustomError("path", "Input should be a path below the base URL")
    return file


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class _Manifest:
    models: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True, config=DOCUMENT)
class _Entry:
    file: Annotated[
        String, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"), AfterValidator(_no_way_up)
    ]
    bytes: Annotated[Integer, Field(ge=1, lt=2**31)]
    sha256: Annotated[String, Field(pattern=r"^[0-9a-f]{64}$")]
    sidecar: dict[str, Any]
    labels: DataSet | Literal["sidecar"] = "sidecar"


@plain(frozen=True, slots=True)
class Download:
    """A file below a base URL, and the model that it is."""

    file: str
    size_bytes: int
    sha256: str
    sidecar: Sidecar

    @property
    def name(self) -> str:
        """The model's name."""
        return self.sidecar.name


def labels(name: str) -> tuple[str, ...]:
    """The classes of a data set, in the order used by networks trained on it."""
    return tuple((MANIFEST.parent / f"{name}.txt").read_text(encoding="utf-8").splitlines())


def read_manifest(path: Path = MANIFEST) -> dict[str, Download]:
    """Every download that a manifest lists, by name.

    Raises:
        BadConfiguration: it cannot be read, or a key of it is wrong.
    """
    try:
        manifest = read(_Manifest, json.loads(read_text(path)), "manifest")
        found = [_download(model, f"models[{n}]") for n, model in enumerate(manifest.models)]
    except (OSError, ValueError, RecursionError) as error:
        raise BadConfiguration(
            cause=f"the manifest {path} cannot be read ({error})", cure="Correct or replace it"
        ) from error
    except Problem as problem:
        raise BadConfiguration(cause=f"{path}: {problem.what}", cure=problem.cure) from problem
    return {download.name: download for download in found}


def find(name: str, path: Path = MANIFEST) -> Download:
    """The download called `name`.

    Raises:
        NotFound: no such download.
        BadConfiguration: as `read_manifest`.
    """
    known = read_manifest(path)
    if name in known:
        return known[name]
    closest = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {closest[0]!r}? " if closest else ""
    raise NotFound(
        cause=f"there is no model {name!r} to download",
        cure=f"{hint}Known models: {', '.join(known)}; "
        "add a file with `imbrex models add FILE.onnx`",
    )


def _download(document: Any, where: str) -> Download:
    entry = read(_Entry, document, where)
    described = entry.sidecar
    if entry.labels != OWN:
        if "labels" in described:
            what = f"key 'labels' of sidecar is not allowed here: {where} names {entry.labels}"
            raise Problem(what, "Remove one of them")
        described = described | {"labels": labels(entry.labels)}
    return Download(entry.file, entry.bytes, entry.sha256, read_sidecar(described))
