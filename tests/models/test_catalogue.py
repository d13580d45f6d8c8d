"""Networks by name and by path."""

from __future__ import annotations

import json
import sys

import pytest

from models.catalogue import catalogue
from protos.errors import BadRequest, NotFound
from tests.models.model_files import SIDECAR, saved, tiny


def test_unknown_name_lists_the_names_and_suggests_one():
    with pytest.raises(NotFound) as caught:
        catalogue.load("vgg-16")
    assert "vgg-16" in caught.value.cause
    assert "Did you mean 'vgg16'?" in caught.value.cure
    assert all(name in caught.value.cure for name in catalogue.names())


def test_name_like_no_other_gets_no_suggestion():
    with pytest.raises(NotFound) as caught:
        catalogue.entry("qqqqqq")
    assert "Did you mean" not in caught.value.cure


@pytest.mark.needs_room("models/zoo")
def test_entries_describe_themselves():
    entries = [catalogue.entry(name) for name in catalogue.names()]
    assert [each.name for each in entries] == list(catalogue.names())
    assert [each.name for each in entries if each.trained] == ["digits"]
    assert [each.name for each in entries if each.task != "tensor"] == ["digits", "yolov8n"]
    assert all(each.description for each in entries)


@pytest.mark.parametrize("as_text", [True, False])
def test_onnx_file_loads_by_path(tmp_path, as_text):
    path = saved(tmp_path, tiny())
    loaded = catalogue.load(str(path) if as_text else path)
    assert loaded.name == "tiny"
    assert loaded.sidecar is None
    assert loaded.proto == tiny()


def test_file_is_trusted_to_be_trained_unless_it_says_otherwise(tmp_path):
    model = tiny()
    assert not catalogue.load(saved(tmp_path, model)).trained
    model.ClearField("metadata_props")
    assert catalogue.load(saved(tmp_path, model)).trained


def test_sidecar_beside_a_file_is_read_and_knows_best_whether_it_is_trained(tmp_path):
    path = saved(tmp_path, tiny())
    path.with_suffix(".json").write_text(json.dumps(SIDECAR))
    loaded = catalogue.load(path)
    assert loaded.sidecar is not None
    assert loaded.sidecar.input.size == (8, 8)
    assert loaded.trained


def test_wrong_sidecar_is_refused(tmp_path):
    path = saved(tmp_path, tiny())
    path.with_suffix(".json").write_text(json.dumps(SIDECAR | {"colour": "RGB"}))
    with pytest.raises(BadRequest, match="colour"):
        catalogue.load(path)


def test_shipped_file_loads_by_name(tmp_path, monkeypatch):
    path = saved(tmp_path, tiny())
    entry = catalogue.Entry("shipped", "a file", path)
    monkeypatch.setitem(catalogue.ENTRIES, "shipped", entry)
    assert catalogue.load("shipped").proto == tiny()


def test_network_that_is_not_installed_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "models.zoo.classic", None)
    with pytest.raises(NotFound, match=r"lacks models\.zoo\.classic") as caught:
        catalogue.load("alexnet")
    assert "Install imbrex again" in caught.value.cure
