"""Strict reading of JSON objects: every key is taken exactly once, with its type and its range."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

Choice = TypeVar("Choice", bound=str)
Pairs = tuple[tuple[float, float], ...]
MOST_ITEMS = 100_000  # labels or anchors in one list


class Problem(Exception):
    """A key that cannot be used: what is wrong with it and the cure."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(what)
        self.what = what
        self.cure = cure


class Fields:
    """The keys of one JSON object, at `where` in its document; `end` refuses what was not read."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where
        self._read: set[str] = set()

    @classmethod
    def of(cls, value: Any, where: str) -> Self:
        """The fields of `value`, which must be an object."""
        if not isinstance(value, dict):
            raise Problem(f"{where} is {_kind(value)}", "Write a JSON object there")
        return cls(value, where)

    def problem(self, key: str, what: str, cure: str) -> Problem:
        """The error to raise about `key`."""
        return Problem(f"key {key!r} of {self._where} {what}", cure)

    def end(self) -> None:
        """Refuse keys that nothing has read."""
        unknown = sorted(set(self._values) - self._read)
        if unknown:
            known = ", ".join(sorted(self._read))
            raise self.problem(unknown[0], "is unknown", f"Remove it; the keys are {known}")

    def absent(self, key: str, why: str) -> None:
        """`key` may be left out or null, never set."""
        self._read.add(key)
        if self._values.get(key) is not None:
            raise self.problem(key, "does not belong here", f"Remove it: {why}")

    def inner(self, key: str) -> Fields:
        """The object under `key`."""
        value = self._take(key)
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return Fields(value, key)

    def text(self, key: str) -> str:
        """A string that is not empty."""
        value = self._take(key)
        if not isinstance(value, str) or not value.strip():
            raise self._wrong(key, value, "a string that is not empty")
        return value

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self._take(key)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def choice(
        self, key: str, options: Sequence[Choice], otherwise: Choice | None = None
    ) -> Choice:
        """One of `options`; `otherwise` where the key may be left out and is."""
        if otherwise is not None and key not in self._values:
            self._read.add(key)
            return otherwise
        value = self._take(key)
        for option in options:
            if value == option:
                return option
        raise self._wrong(key, value, "one of " + ", ".join(repr(option) for option in options))

    def integer(self, key: str, at_least: int, at_most: int) -> int:
        """A whole number within the bounds."""
        value = self._take(key)
        if not _is_integer(value, at_least, at_most):
            raise self._wrong(key, value, f"a whole number from {at_least} to {at_most}")
        return int(value)

    def number(self, key: str, above: float = -math.inf, at_most: float = math.inf) -> float:
        """A finite number in (above, at_most]."""
        value = self._take(key)
        if not _is_number(value, above) or value > at_most:
            raise self._wrong(key, value, f"a number{_bounds(above, at_most)}")
        return float(value)

    def three(self, key: str, above: float = -math.inf) -> tuple[float, float, float]:
        """Three finite numbers greater than `above`: one per colour."""
        match self._take(key):
            case [a, b, c] if all(_is_number(value, above) for value in (a, b, c)):
                return float(a), float(b), float(c)
            case value:
                raise self._wrong(key, value, f"three numbers{_bounds(above)}")

    def objects(self, key: str) -> list[Fields]:
        """A list of objects, each to be read as this one."""
        values = self._take(key)
        if not _is_list(values) or not all(isinstance(value, dict) for value in values):
            raise self._wrong(key, values, "a list of objects")
        return [Fields(value, f"{key}[{index}]") for index, value in enumerate(values)]

    def matching(self, key: str, pattern: re.Pattern[str], wanted: str) -> str:
        """A string that all of `pattern` matches; `wanted` says it in words."""
        value = self._take(key)
        if not isinstance(value, str) or not pattern.fullmatch(value) or ".." in value:
            raise self._wrong(key, value, wanted)
        return value

    def integers(self, key: str, count: int | None, at_least: int, at_most: int) -> tuple[int, ...]:
        """Exactly `count` whole numbers within the bounds; None: at least one."""
        values = self._take(key)
        if (
            not values
            or not _is_list(values, count)
            or not all(_is_integer(value, at_least, at_most) for value in values)
        ):
            many = "some" if count is None else str(count)
            wanted = f"a list of {many} whole numbers from {at_least} to {at_most}"
            raise self._wrong(key, values, wanted)
        return tuple(values)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings, possibly empty."""
        values = self._take(key)
        if not _is_list(values) or not all(isinstance(value, str) for value in values):
            raise self._wrong(key, values, f"a list of at most {MOST_ITEMS} strings")
        return tuple(values)

    def text_or_null(self, key: str) -> str | None:
        """A string that is not empty, or null."""
        if self._values.get(key, "") is None:
            self._read.add(key)
            return None
        return self.text(key)

    def two(self, key: str, above: float = -math.inf) -> tuple[float, float]:
        """Two finite numbers greater than `above`."""
        match self._take(key):
            case [a, b] if all(_is_number(value, above) for value in (a, b)):
                return float(a), float(b)
            case value:
                raise self._wrong(key, value, f"two numbers{_bounds(above)}")

    def pairs(self, key: str, above: float) -> Pairs:
        """A list, not empty, of pairs of numbers greater than `above`."""
        values = self._take(key)
        if not values or not _is_table(values, 2, above):
            raise self._wrong(key, values, f"a list of pairs of numbers{_bounds(above)}")
        return tuple((float(first), float(second)) for first, second in values)

    def groups_of_pairs(self, key: str, above: float) -> tuple[Pairs, ...]:
        """A list, not empty, of lists, not empty, of pairs of numbers greater than `above`."""
        groups = self._take(key)
        if (
            not _is_list(groups)
            or not groups
            or not all(group and _is_table(group, 2, above) for group in groups)
        ):
            raise self._wrong(key, groups, f"a list of lists of pairs of numbers{_bounds(above)}")
        return tuple(tuple((float(a), float(b)) for a, b in group) for group in groups)

    def fours(self, key: str) -> tuple[tuple[float, float, float, float], ...]:
        """A list, possibly empty, of lists of four numbers."""
        values = self._take(key)
        if not _is_table(values, 4, -math.inf):
            raise self._wrong(key, values, "a list of lists of four numbers")
        return tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in values)

    def _take(self, key: str) -> Any:
        self._read.add(key)
        if key not in self._values:
            raise self.problem(key, "is missing", "Add it")
        return self._values[key]

    def _wrong(self, key: str, value: Any, wanted: str) -> Problem:
        return self.problem(key, f"is {_kind(value)}", f"Write {wanted}")


def _is_number(value: Any, above: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 and value > above


def _is_integer(value: Any, at_least: int, at_most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and at_least <= value <= at_most


def _is_list(value: Any, count: int | None = None) -> bool:
    if not isinstance(value, list) or len(value) > MOST_ITEMS:
        return False
    return count is None or len(value) == count


def _is_table(values: Any, width: int, above: float) -> bool:
    return _is_list(values) and all(
        _is_list(row, width) and all(_is_number(value, above) for value in row) for row in values
    )


def _bounds(above: float, at_most: float = math.inf) -> str:
    least = f" above {above:g}" if above > -math.inf else ""
    return least + (f", at most {at_most:g}" if at_most < math.inf else "")


def _kind(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
