"""Label files and label maps as people write them."""

from __future__ import annotations

import pytest

from models.vision.label_file import labels_of
from protos.daemon.documents import Problem

PETS = ("cat", "dog", "bird")


@pytest.mark.parametrize(
    "lines",
    [
        ["cat", "dog", "bird"],
        ["  cat", "", "dog ", "bird", ""],
        ["0 cat", "1 dog", "2 bird"],
        ["0: cat", "1: dog", "2: bird"],
        ["0:cat", "1:dog", "2:bird"],
        ["1,cat", "2,dog", "3,bird"],
        ["2\tbird", "1\tdog", "0\tcat"],
        ['0: "cat",', "1: 'dog',", '"2": "bird"'],
        ["0. cat", "1. dog", "2. bird"],
        ["1) cat", "2) dog", "3) bird"],
        ["0 - cat", "1 - dog", "2 - bird"],
        ["000 cat", "001 dog", "002 bird"],
        ["cat,0", "dog,1", "bird,2"],
        ["cat: 1", "dog: 2", "bird: 3"],
    ],
)
def test_labels_are_read_however_they_are_numbered(lines: list[str]) -> None:
    assert labels_of("\n".join(lines)) == PETS


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("0\n1\n2", ("0", "1", "2")),  # digits are labels
        ("hot dog\n3d printer\n4x4", ("hot dog", "3d printer", "4x4")),
        ("1.5 t\n7.5 t", ("1.5 t", "7.5 t")),
        ("Bär\n猫\n🐕", ("Bär", "猫", "🐕")),
        ("0: 1 euro\n1: 2 euro", ("1 euro", "2 euro")),
        ("1  cat\n2  dog\n4  bird", ("cat", "dog", "3", "bird")),  # COCO's has gaps, too
        ("0: person: adult\n1: person: child", ("person: adult", "person: child")),
        ("", ()),
    ],
)
def test_labels_that_look_numbered_and_maps_with_gaps(text: str, labels: tuple[str, ...]) -> None:
    assert labels_of(text) == labels


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("0 cat\ndog\n2 bird", r"line 2 \('dog'\) has no number, but line 1"),
        ("cat\n\n1: dog", r"line 1 \('cat'\) has no number, but line 3"),
        ("id,name\n0,cat\n1,dog", r"line 1 \('id,name'\)"),
        ("0: cat\n0: dog", "line 2 has the number 0 again"),
        ("20 km\n30 km", "no line has the number 1"),
        ("1 euro\n5 euro", "no line has the number 2"),
        ("7: cat\n8: dog", "no line has the number 1"),
        ("0: cat\n99999999999999: dog", "line 2 has the number 99999999999999"),
        ("0: cat\n1: ''", "line 2 has no label"),
    ],
)
def test_unclear_label_file_is_refused_with_its_line(text: str, what: str) -> None:
    with pytest.raises(Problem, match=what) as caught:
        labels_of(text)
    assert "NUMBER: LABEL" in caught.value.cure
