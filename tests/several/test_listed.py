"""The models in the cluster's state: what is listed, and what is none."""

from __future__ import annotations

import pytest

from coordinator.several.listed import MOST_FILES, MOST_REMOVED, ListedFile, add, drop, read
from models.catalogue.installed import MODEL_FILE
from models.onnx_file.model_file import MAX_MODEL_BYTES
from protos.errors import NotFound

MODEL = {MODEL_FILE: ListedFile("a" * 64, 100), "model.json": ListedFile("b" * 64, 10)}
OTHER = {MODEL_FILE: ListedFile("c" * 64, 200)}
GOOD = {"sha256": "a" * 64, "bytes": 5}


def entry(files, number="1", newest=1):
    return {"newest": newest, "versions": {number: files}}


def test_added_models_are_read():
    entries = {}
    assert [add(entries, "yard", 1, MODEL), add(entries, "yard", 2, OTHER)] == [1, 2]
    models, problems = read(entries)
    assert problems == []
    assert (models["yard"].newest, models["yard"].versions) == (2, {1: MODEL, 2: OTHER})


def test_same_files_are_one_version_whoever_lists_them():
    entries = {}
    assert add(entries, "yard", 1, MODEL) == add(entries, "yard", 1, MODEL) == 1
    assert add(entries, "yard", 1, OTHER) == 2
    assert add(entries, "yard", 7, OTHER) == 7
    assert add(entries, "yard", 3, MODEL) == 8


def test_a_number_is_never_given_again():
    entries = {}
    for number in (1, 2):
        add(entries, "yard", number, MODEL)
    assert drop(entries, "yard", 2) == (2,)
    assert add(entries, "yard", 2, OTHER) == 3
    assert drop(entries, "yard") == (1, 3)
    assert read(entries)[0]["yard"].versions == {}
    assert add(entries, "yard", 1, OTHER) == 4


@pytest.mark.parametrize(("name", "version"), [("none", None), ("yard", 3), ("gone", None)])
def test_missing_model_is_not_removed(name, version):
    entries = {}
    for each in ("yard", "gone"):
        add(entries, each, 1, MODEL)
    drop(entries, "gone")
    with pytest.raises(NotFound):
        drop(entries, name, version)
    assert list(read(entries)[0]["yard"].versions) == [1]


def test_of_removed_names_so_many_are_remembered():
    entries = {}
    for number in range(MOST_REMOVED + 5):
        add(entries, f"net{number}", 1, MODEL)
        drop(entries, f"net{number}")
    add(entries, "yard", 1, MODEL)
    assert len(entries) == MOST_REMOVED + 1


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("../../etc", entry({MODEL_FILE: GOOD})),
        (".hidden", entry({MODEL_FILE: GOOD})),
        ("yard", entry({"../model.onnx": GOOD, MODEL_FILE: GOOD})),
        ("yard", entry({"a/b": GOOD, MODEL_FILE: GOOD})),
        ("yard", entry({".cluster": GOOD, MODEL_FILE: GOOD})),
        ("yard", entry({"model.json": GOOD})),
        ("yard", entry({})),
        ("yard", entry({MODEL_FILE: GOOD} | {f"f{n}": GOOD for n in range(MOST_FILES)})),
        ("yard", entry({MODEL_FILE: {"sha256": "A" * 64, "bytes": 5}})),
        ("yard", entry({MODEL_FILE: {"sha256": "../" * 20, "bytes": 5}})),
        ("yard", entry({MODEL_FILE: {"sha256": "a" * 64, "bytes": -1}})),
        ("yard", entry({MODEL_FILE: {"sha256": "a" * 64, "bytes": MAX_MODEL_BYTES + 1}})),
        ("yard", entry({MODEL_FILE: {"sha256": "a" * 64, "bytes": "5"}})),
        ("yard", entry({MODEL_FILE: 5})),
        ("yard", entry(5)),
        ("yard", entry("model.onnx")),
        ("yard", entry({MODEL_FILE: GOOD}, number="0")),
        ("yard", entry({MODEL_FILE: GOOD}, number="-1")),
        ("yard", entry({MODEL_FILE: GOOD}, number="../1")),
        ("yard", entry({MODEL_FILE: GOOD}, number="2", newest=1)),
        ("yard", entry({MODEL_FILE: GOOD}, newest=10**9)),
        ("yard", {"newest": 1}),
        ("yard", {"newest": 1, "versions": []}),
    ],
)
def test_malformed_model_is_named_and_no_other_is_lost(name, found):
    entries = {}
    add(entries, "hall", 1, MODEL)
    models, problems = read({**entries, name: found})
    assert list(models) == ["hall"]
    (problem,) = problems
    assert "is not a model" in problem
