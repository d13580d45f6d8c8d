"""Sizes as people read them."""

import pytest

from models.tensors.memory import megabytes


@pytest.mark.parametrize(
    ("size_bytes", "digits", "expected"),
    [
        (0, 0, "0 MB"),
        (375e6, 0, "375 MB"),
        (1_499_999, 0, "1 MB"),
        (500_001, 0, "1 MB"),
        (70_000, 0, "0.07 MB"),
        (3_000, 2, "0.003 MB"),
        (57_600_000, 2, "57.60 MB"),
    ],
)
def test_megabytes_are_whole_and_zero_only_for_nothing(
    size_bytes: float, digits: int, expected: str
) -> None:
    assert megabytes(size_bytes, digits) == expected
