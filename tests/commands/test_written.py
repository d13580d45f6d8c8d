"""Files that people write, as editors and shells of other systems save them."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.costs.affine import LayerRates
from coordinator.costs.profile_json import parse_profile, save_profile
from coordinator.costs.regression import DeviceProfile, LayerRegression
from coordinator.library.repository import read_repository
from coordinator.planning.plan_json import parse_plan, save_plan
from coordinator.serving.common.tls import WebTls
from coordinator.settings import CoordinatorSettings
from imbrex.calls import read_file
from imbrex.cli.adding import _read_labels
from imbrex.demo.emulation.settings import load_emulation
from imbrex.described import load_cluster, network_of
from imbrex.kinds.presets import FOLDER, load_kind
from imbrex.library import plan
from models.catalogue.installed import DEFAULTS_FILE, Store
from models.digits import EXAMPLES
from models.downloads import MANIFEST, read_manifest
from models.quantise.labelled import truth_of
from models.vision.sidecar import load, sidecar_path
from tests.trust.test_web_tls import authority, shown, written
from worker.settings import WorkerSettings

__all__ = ["authority"]  # a fixture

CLUSTERS = Path("docs/clusters")
FIT = LayerRegression(LayerRates(1e-5, 1e-10, 0, 1e-11, 0), 30, 0.05, 0.0)
SAVED: dict[str, Callable[[str], bytes]] = {
    "utf-8-sig": lambda text: text.encode("utf-8-sig"),
    "utf-16": lambda text: codecs.BOM_UTF16_LE + text.encode("utf-16-le"),
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "all": lambda text: text.replace("\n", "\r\n").encode("utf-8-sig"),
}


def triton(path: Path) -> Any:
    stored = read_repository(path.parent.parent)[path.parent.name]
    assert not stored.problem
    return stored.labels


def planned(path: Path) -> Any:
    return parse_plan(read_file(path), network_of("digits"))


READERS: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "labels": ("birds.txt", "Rotkehlchen\nZaunkönig\n猫\n", lambda path: _read_labels(str(path))),
    "label map": ("birds.csv", "0,a\n1,b\n", lambda path: _read_labels(str(path))),
    "truth": (
        "a.txt",
        "0 0.5 0.5 0.2 0.2\n1 0.5 0.5 0.1 0.1\n",
        lambda path: truth_of(path.with_suffix(".png"), (9, 9), "ab"),
    ),
    "worker's settings": ("worker.toml", 'name = "Küche"\n', WorkerSettings.load),
    "coordinator's settings": ("hub.toml", 'host_names = ["a"]\n', CoordinatorSettings.load),
    "cluster": ("four.toml", (CLUSTERS / "four-pi4.toml").read_text(), load_cluster),
    "sidecar": ("digits.json", sidecar_path(EXAMPLES.parent / "digits.onnx").read_text(), load),
    "preset": (
        "own.toml",
        (FOLDER / "pi3b-ort.toml").read_text(),
        lambda path: load_kind(str(path)),
    ),
    "emulation": ("own.toml", "message_ms = 1.0\ntask_ms = 2.0\n", load_emulation),
    "manifest": ("manifest.json", MANIFEST.read_text(), read_manifest),
    "plan": (
        "plan.json",
        save_plan(plan("digits", CLUSTERS / "four-pi4.toml").model_dump()),
        planned,
    ),
    "profile": (
        "pi.json",
        save_profile(DeviceProfile({"convolution": FIT}, fingerprint={"cpu": "x"})),
        lambda path: parse_profile(path.read_bytes()),
    ),
    "configuration": (
        "net/config.pbtxt",
        'name: "net"\noutput [{ name: "y" label_filename: "own.txt" }]\n',
        triton,
    ),
    "labels of an output": ("net/labels.txt", "0 ant\n1 bee\n", triton),
}


@pytest.mark.parametrize("form", SAVED)
@pytest.mark.parametrize("what", READERS)
def test_handwritten_files_are_read_however_they_were_saved(
    what: str, form: str, tmp_path: Path
) -> None:
    name, text, read = READERS[what]
    path = tmp_path / name
    if path.parent != tmp_path:
        (path.parent / "1").mkdir(parents=True)
        (path.parent / "1" / "model.onnx").write_bytes(b"onnx")
        (path.parent / "own.txt").write_text("c\n")
        (path.parent / "config.pbtxt").write_text(
            'name: "net"\noutput [{ name: "y" label_filename: "labels.txt" }]\n'
        )
    path.write_bytes(text.encode())
    plain = read(path)
    path.write_bytes(SAVED[form](text))
    assert read(path) == plain


def test_defaults_of_tasks(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add("birds", b"onnx", load(sidecar_path(EXAMPLES.parent / "digits.onnx")))
    (tmp_path / DEFAULTS_FILE).write_bytes('{"detection": "birds"}'.encode("utf-8-sig"))
    assert store.defaults() == {"detection": "birds"}


def test_a_certificate_that_an_editor_saved(tmp_path: Path, authority: Any) -> None:
    settings = written(tmp_path / "files", authority)
    plain = WebTls.of(settings)
    for file in (settings.tls_cert, settings.tls_key):
        file.write_bytes(codecs.BOM_UTF8 + file.read_bytes())
    marked = WebTls.of(settings)
    assert plain is not None
    assert marked is not None
    assert shown(marked) == shown(plain)
