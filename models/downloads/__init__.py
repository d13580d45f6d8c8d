"""Trained networks that can be downloaded: where each is, what it must be, and its sidecar.

Contents are pinned by SHA-256, so a file may come from anywhere: its place is relative to a base
URL. `labels` names a list beside this file, in place of the sidecar's own; a model without labels
is guessed to have been trained on one of them.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from models.sidecar import Sidecar, read_sidecar
from models.strict import Fields, Problem
from protos.errors import BadConfiguration, NotFound

MANIFEST = Path(__file__).parent / "manifest.json"
LABELS = ("coco", "imagenet", "voc")
OWN = "sidecar"  # the labels are in the sidecar itself
LARGEST_BYTES = 2**31 - 1
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")


@dataclass(frozen=True, slots=True)
class Download:
    """A file below a base URL, and the model that it is."""

    file: str
    size_bytes: int
    sha256: str
    sidecar: Sidecar

    @property
    def name(self) -> str:
        """What the model is called here."""
        return self.sidecar.name


def labels(name: str) -> tuple[str, ...]:
    """The classes of a data set, in the order that networks trained on it have."""
    return tuple((MANIFEST.parent / f"{name}.txt").read_text(encoding="utf-8").splitlines())


def read_manifest(path: Path = MANIFEST) -> dict[str, Download]:
    """Every download that a manifest lists, by name.

    Raises:
        BadConfiguration: it cannot be read, or a key of it is wrong.
    """
    try:
        document = Fields.of(json.loads(path.read_text(encoding="utf-8")), "manifest")
        found = [_download(each) for each in document.objects("models")]
        document.end()
    except (OSError, ValueError, RecursionError) as error:
        raise BadConfiguration(
            cause=f"the manifest {path} cannot be read ({error})", cure="Correct or replace it"
        ) from error
    except Problem as problem:
        raise BadConfiguration(cause=f"{path}: {problem.what}", cure=problem.cure) from problem
    return {each.name: each for each in found}


def find(name: str, path: Path = MANIFEST) -> Download:
    """The download called `name`.

    Raises:
        NotFound: there is none.
        BadConfiguration: as `read_manifest`.
    """
    known = read_manifest(path)
    if name in known:
        return known[name]
    closest = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {closest[0]!r}? " if closest else ""
    raise NotFound(
        cause=f"there is no model {name!r} to download",
        cure=f"{hint}Known are {', '.join(known)}; a file of yours: `imbrex models add FILE.onnx`",
    )


def _download(fields: Fields) -> Download:
    inner = fields.inner("sidecar")
    data_set = fields.choice("labels", (*LABELS, OWN), otherwise=OWN)
    sidecar = read_sidecar(inner, None if data_set == OWN else labels(data_set))
    read = Download(
        file=fields.matching("file", _FILE, "a path below the base URL"),
        size_bytes=fields.integer("bytes", 1, LARGEST_BYTES),
        sha256=fields.matching("sha256", _SHA256, "64 hexadecimal digits"),
        sidecar=sidecar,
    )
    fields.end()
    return read
