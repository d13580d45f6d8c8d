"""One word per concept: no page, comment or string uses a word that CONTRIBUTING rules out."""

import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchmarks.house.counts import product

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TABLE = (ROOT / "CONTRIBUTING.md").read_text().split("\n## Words\n")[1].split("\n## ")[0]


def ruled_out(table: str) -> dict[str, str]:
    """Every word of the last column -> the word to use."""
    rows = re.findall(r"^\| (.+?) \| .+? \| (.+?) \|$", table, re.MULTILINE)
    return {word: use for use, others in rows[1:] for word in others.split(", ")}


def prose(file: Path) -> Iterator[tuple[int, str]]:
    """Comments and strings of a Python file, and of a page all but its code, by line."""
    text = file.read_text()
    if file.suffix == ".md":
        text = re.sub(
            r"```.*?```", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL
        )
        yield 1, re.sub(r"`[^`\n]*`", "``", text)
    else:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield token.start[0], token.string


def misused(line: int, text: str, words: Mapping[str, str]) -> list[str]:
    """`line: word (use)` for every such word of a text that begins at `line`."""
    pattern = rf"\b({'|'.join(re.sub(' ', '[ -]?', word) for word in words)})s?\b"
    return [
        f"{line + text[: found.start()].count(chr(10))}: {found[0]}"
        for found in re.finditer(pattern, text, re.IGNORECASE)
    ]


def test_no_word_is_used_that_the_table_rules_out() -> None:
    words = ruled_out(TABLE)
    assert len(words) > 30
    files = [*product(), *PAGES]
    assert len(files) > 400
    found = [
        f"{file.relative_to(ROOT)}:{each}"
        for file in files
        for line, text in prose(file)
        for each in misused(line, text, words)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.py", '"""Sends a tile."""\nx = 1  # to its Neighbors\n', ["2: Neighbors"]),
        ("a.py", '"""Gives\nneighbours their borders."""\npatch = 1\n', ["2: borders"]),
        ("a.md", "A tile\n```\nsubgraph a\n```\nis a sub-image.\n", ["5: sub-image"]),
        ("a.md", "A `subgraph`, the schedules and the scheduler.\n", ["1: schedules"]),
    ],
)
def test_a_wrong_word_is_noticed(tmp_path: Path, name: str, text: str, found: list[str]) -> None:
    (tmp_path / name).write_text(text)
    words = ruled_out(TABLE)
    seen = [each for line, part in prose(tmp_path / name) for each in misused(line, part, words)]
    assert seen == found
