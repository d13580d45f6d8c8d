"""The tests that the page on extending names are there."""

import re

from tests.docs.commands import ROOT

PAGE = ROOT / "docs" / "extending.md"


def named() -> set[str]:
    """What is written as a test, a file of tests, or a file beside them."""
    return set(re.findall(r"`((?:tests/[\w/]+/)?\w+(?:\.py)?)`", PAGE.read_text()))


def test_every_named_test_exists() -> None:
    files = {str(file.relative_to(ROOT)): file for file in (ROOT / "tests").rglob("*.py")}
    known = set(files) | {file.name for file in files.values()}
    for file in files.values():
        known |= set(re.findall(r"^ *(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE))
    tests = {name for name in named() if name.startswith("test")}
    assert len(tests) >= 5
    assert tests <= known


def test_every_row_names_a_test() -> None:
    rows = re.findall(r"^\| (an? .*?) \|.*?\| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 5
    assert [what for what, see in rows if "test_" not in see] == []
