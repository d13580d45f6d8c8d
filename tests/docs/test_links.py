"""Links between files of the repository lead to a file, and to one of its headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.commands import PAGES, ROOT

PLACES = ("docs/adr", "models", "benchmarks/results", "training")
READ = sorted(
    {
        *PAGES,
        ROOT / "CHANGELOG.md",
        *(ROOT / "deploy" / "ansible").glob("*.md"),
        *(path for where in PLACES for path in (ROOT / where).rglob("*.md")),
    }
)
# Made when the site is built; mkdocs checks links to them.
_OF_THE_SITE = ROOT / "docs" / "reference"
_CODE = re.compile(r"```.*?```", re.DOTALL)


def broken(page: Path, text: str) -> Iterator[str]:
    """Targets of the page's links that are not there."""
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", _CODE.sub("", text)):
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if file.is_relative_to(_OF_THE_SITE):
            continue
        if not file.exists() or (heading and heading not in headings(file.read_text())):
            yield target


def headings(text: str) -> set[str]:
    """What links to the headings of a page end with."""
    lines = re.findall(r"^#+ (.*)$", _CODE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", line)) for line in lines)
    return {line.strip().lower().replace(" ", "-") for line in plain}


def test_every_link_leads_somewhere() -> None:
    assert len(READ) > 40
    assert {page: lost for page in READ if (lost := [*broken(page, page.read_text())])} == {}


def test_a_broken_link_would_be_noticed() -> None:
    text = "# A `b` c\n[x](README.md) [x](#a-b-c) [x](NONE.md) [x](#d) [x](https://e.org)\n"
    assert [*broken(ROOT / "CONTRIBUTING.md", text)] == ["#a-b-c", "NONE.md", "#d"]
    assert "a-b-c" in headings(text)
