"""Lists and ranges on the command line: `1..4`, `1,2,4`, `lw,aofl`. Imports nothing heavy."""

from __future__ import annotations

MOST = 256


def counts(text: str) -> list[int]:
    """Numbers of devices, ascending, each once: `4`, `1..4`, `1,2,4`.

    Raises:
        ValueError: saying what is wrong, for the user.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        ends = (first, last if dots else first)
        if not all(end.isascii() and end.isdecimal() and len(end) < 5 for end in ends):
            raise ValueError(f"{part.strip()!r} is not a number of devices, nor a range as 1..4")
        low, high = (int(end) for end in ends)
        if not 1 <= low <= high <= MOST:
            raise ValueError(f"{part.strip()!r} is no range from 1 up, of at most {MOST}")
        found.update(range(low, high + 1))
    return sorted(found)


def listed(text: str) -> list[str]:
    """Names between commas, each once.

    Raises:
        ValueError: one of them is empty.
    """
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        raise ValueError("there is an empty name between the commas")
    return list(dict.fromkeys(found))
