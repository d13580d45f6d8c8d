"""The page on troubleshooting has every code that the doctor's findings may have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from coordinator.devices.events import ProblemCode

ROOT = Path(__file__).parents[2]
# Findings have these by other names, or none.
_RENAMED = {"no_answer", "duplicate_id", "too_many_addresses"}


def documented(page: str) -> set[str]:
    """The codes of the table's first column."""
    cells = re.findall(r"^\| (`.*?`) \|", page, re.M)
    return {code for cell in cells for code in re.findall(r"`(\w+)`", cell)}


def codes() -> Iterator[str]:
    """Those of the sources, and those that a device's problem gives to its finding."""
    for file in (ROOT / "coordinator" / "doctor").glob("*.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Finding":
                constants = (
                    node for node in ast.walk(call.args[0]) if isinstance(node, ast.Constant)
                )
                yield from (str(node.value) for node in constants)
    yield from set(get_args(ProblemCode)) - _RENAMED


def test_the_page_has_every_finding() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert documented(page) == set(codes())
    assert documented(page.replace("`moved`", "moved")) != set(codes())
