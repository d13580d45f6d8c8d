"""Label files as people have them: one label per line, in the order of the classes, or a label map,
whose lines have the number of the class and its label.
"""

import re
from collections.abc import Mapping

from protos.daemon.documents import MOST_ITEMS, Problem

# `0 person`, `0: person`, `1,cat`, `"2" = "dog",`, `3) bird`; and `person: 0`.
_NUMBER_FIRST = re.compile(
    r"""["']?(?P<number>\d+)["']?(?P<between>\s*[:,;=|)]\s*|\.\s+|\s+-\s+|\s+)(?P<label>\S.*)"""
)
_NUMBER_LAST = re.compile(
    r"""(?P<label>\S.*?)(?P<between>\s*[:,;=|\t]\s*)["']?(?P<number>\d+)["']?,?"""
)
_CURE = (
    "Write one label per line, in the order of the classes, or NUMBER: LABEL on every line, with "
    "numbers from 0 or 1 on"
)

Lines = Mapping[int, str]


def labels_of(text: str) -> tuple[str, ...]:
    """The labels in a file's text. A class that a label map leaves out is called by its number.

    Raises:
        Problem: it is unclear what is meant; the line is named.
    """
    numbered_lines = enumerate(map(str.strip, text.split("\n")), 1)
    lines = {number: line for number, line in numbered_lines if line}
    last = {number: _NUMBER_LAST.fullmatch(line) for number, line in lines.items()}
    matches = {number: _NUMBER_FIRST.fullmatch(line) for number, line in lines.items()}
    if not any(matches.values()):
        if not lines or not all(last.values()):
            return tuple(lines.values())
        matches = last
    _require_all(lines, matches)
    return _by_class({number: match for number, match in matches.items() if match})


def _require_all(lines: Lines, matches: Mapping[int, re.Match[str] | None]) -> None:
    with_number = next((number for number, match in matches.items() if match), None)
    without = next((number for number, match in matches.items() if not match), None)
    if with_number is not None and without is not None:
        raise Problem(
            f"line {without} ({lines[without]!r}) has no number, but line {with_number} "
            f"({lines[with_number]!r}) has one",
            _CURE,
        )


def _by_class(matches: Mapping[int, re.Match[str]]) -> tuple[str, ...]:
    labels: dict[int, str] = {}
    for line, match in matches.items():
        digits = match["number"].lstrip("0") or "0"
        if len(digits) >= len(str(MOST_ITEMS)):
            raise Problem(f"line {line} has the number {digits[:20]}", _CURE)
        number = int(digits)
        if number in labels:
            raise Problem(f"line {line} has the number {number} again", _CURE)
        labels[number] = match["label"].rstrip(",").strip("\"'").strip()
        if not labels[number]:
            raise Problem(f"line {line} has no label", _CURE)
    first = min(1, *labels)
    absent = next((number for number in range(first, max(labels)) if number not in labels), None)
    # "20 kilometres" is a label: after a single space, only a complete sequence numbers classes.
    unsure = any(match["between"] == " " for match in matches.values())
    if absent is not None and (unsure or min(labels) > 1):
        raise Problem(f"no line has the number {absent}", _CURE)
    return tuple(labels.get(number, str(number)) for number in range(first, max(labels) + 1))
