from __future__ import annotations

from pathlib import Path

import pytest

from models.catalogue import catalogue
from models.catalogue.installed import MODEL_FILE, Store
from protos.errors import BadConfiguration, BadRequest, NotFound
from tests.models.model_files import tiny


def write(folder: Path) -> None:
    (folder / MODEL_FILE).write_bytes(tiny().SerializeToString())


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "none")
    assert (store.installed(), store.find("net"), store.defaults()) == ({}, None, {})


def test_next_version_is_the_latest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert [store.put("net", write) for _ in range(3)] == [1, 2, 3]
    assert store.remove("net", 2) == (2,)
    found = store.installed()["net"]
    assert list(found.versions) == [1, 3]
    assert found.latest == tmp_path / "net" / "3" / MODEL_FILE
    assert store.put("net", write) == 4
    assert store.remove("net") == (1, 3, 4)
    assert not (tmp_path / "net").exists()


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def breaks(folder: Path) -> None:
        (folder / MODEL_FILE).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(BadConfiguration, match="No space left"):
        store.put("net", breaks)
    assert store.installed() == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "../net", "a/b", ".net", "a b", "x" * 65, "net@8x8"])
def test_a_name_that_is_no_name_is_refused_and_never_a_path(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path)
    with pytest.raises(BadRequest) as caught:
        store.put(name, write)
    assert caught.value.cure
    assert store.find(name) is None


def test_missing_model_or_version_cannot_be_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("net", write)
    for name, version in (("other", None), ("net", 2)):
        with pytest.raises(NotFound):
            store.remove(name, version)
    assert store.find("net") is not None


def test_a_default_goes_with_its_model(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("net", write)
    store.put("net", write)
    store.choose("detection", "net")
    store.remove("net", 1)
    assert store.defaults() == {"detection": "net"}
    store.remove("net")
    assert store.defaults() == {}


def test_broken_defaults_are_named(tmp_path: Path) -> None:
    (tmp_path / "defaults.json").write_text("[]")
    with pytest.raises(BadConfiguration, match=r"defaults\.json") as caught:
        Store(tmp_path).defaults()
    assert caught.value.cure


def test_an_added_model_is_loaded_by_its_name(store: str) -> None:
    Store().put("yard", write)
    loaded = catalogue.load("yard")
    assert (loaded.name, loaded.sidecar) == ("yard", None)
    with pytest.raises(NotFound, match="yird") as caught:
        catalogue.load("yird")
    assert "Did you mean 'yard'" in caught.value.cure
