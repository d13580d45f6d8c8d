"""Pages have the figures of the committed results, whose every file is on the page of results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import hardware, readme, tables
from protos.errors import BadConfiguration

FRESH = tables.pages()


@pytest.mark.parametrize("page", sorted(FRESH), ids=lambda page: page.relative_to(tables.ROOT))
def test_pages_have_the_committed_results(page: Path) -> None:
    assert page.read_text() == FRESH[page], "run `python -m benchmarks.tables`"


def test_pictures_have_the_committed_results() -> None:
    charts = hardware.charts(tables.read("hardware.json")["seconds"])
    assert len(charts) == len(hardware.KINDS)
    for path, svg in charts.items():
        assert path.read_text() == svg, "run `python -m benchmarks.tables`"


def test_changed_result_changes_the_pages_that_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tables.RESULTS, tmp_path / "results")
    for module in (readme, tables):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    assert tables.pages() == FRESH
    file = tmp_path / "results" / "hardware.json"
    document = json.loads(file.read_text())
    document["seconds"]["pi5-gbe"]["yolov8n"]["4"] *= 2
    file.write_text(json.dumps(document))
    changed = {page.name for page, text in tables.pages().items() if text != FRESH[page]}
    assert changed == {"README.md", "hardware.md"}


def test_every_result_is_on_the_page() -> None:
    files = {path.relative_to(tables.RESULTS).as_posix() for path in tables.RESULTS.rglob("*.json")}
    assert sorted(files) == sorted([*tables.LEFT_OUT, *(one.file for one in tables.SECTIONS)])


def test_values_within_values_have_a_column_each() -> None:
    row = {
        "took_s": 1.23456,
        "per_s": 2,
        "whole": {"ms": 3, "provenance": {}},
        "workers": [{"resident_mb": 5, "kills": 0}, {"resident_mb": 7, "kills": None}],
        "losses": [],
    }
    assert tables.flat(row) == {
        "took, s": 1.23456,
        "per s": 2,
        "whole ms": 3,
        "most workers kills": 0,
        "most workers resident, mb": 7,
    }


def test_a_cell_that_a_row_lacks_is_empty() -> None:
    rows = [{"a": 1}, {"a": 2.34567, "b": True}]
    assert tables.markdown(rows) == "| a | b |\n|---|---|\n| 1 |  |\n| 2.346 | yes |"
    assert tables.markdown(rows[1:]) == "|  |  |\n|---|---|\n| a | 2.346 |\n| b | yes |"


def test_text_between_the_marks_alone_is_replaced() -> None:
    page = f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n"
    expected = f"before\n{tables.BEGIN}\nnew\n{tables.END}\nafter\n"
    assert tables.between_marks(page, "new") == expected
    with pytest.raises(BadConfiguration):
        tables.between_marks("nothing here", "new")
