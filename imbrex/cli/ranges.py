"""Lists and ranges on the command line: `1..4`, `1,2,4`, `lw,aofl`. Imports nothing heavy."""

MOST = 256


def counts(text: str) -> list[int]:
    """Numbers of devices, ascending, each once: `4`, `1..4`, `1,2,4`.

    Raises:
        ValueError: with a message for the user.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        ends = (first, last if dots else first)
        if not all(end.isascii() and end.isdecimal() and len(end) < 5 for end in ends):
            raise ValueError(
                f"{part.strip()!r} is neither a number of devices nor a range such as 1..4"
            )
        low, high = (int(end) for end in ends)
        if not 1 <= low <= high <= MOST:
            raise ValueError(f"{part.strip()!r} is not a range within 1..{MOST}")
        found.update(range(low, high + 1))
    return sorted(found)


def listed(text: str) -> list[str]:
    """Names between commas, each once.

    Raises:
        ValueError: one of them is empty.
    """
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        raise ValueError("a name between the commas is empty")
    return list(dict.fromkeys(found))
