"""Geometry that every request of a plan repeats, worked out once: between two kernels, which leave
nothing in the caches, working it out again takes longer than the rest of receiving a halo.
"""

from __future__ import annotations

from functools import lru_cache

from models.tensors.boxes import Box, minus

# Of a few plans.
_MOST = 4096
# More gaps than a plan's pieces leave are not kept: they would take the memory of many plans.
_MOST_GAPS = 8

contains = lru_cache(_MOST)(Box.contains)
slices = lru_cache(_MOST)(Box.slices)


@lru_cache(_MOST)
def shape(box: Box) -> tuple[int, ...]:
    """Elements along each dimension."""
    return box.shape


def without(gaps: tuple[Box, ...], part: Box) -> tuple[Box, ...]:
    """Disjoint boxes that cover the gaps but for a part; equal ones if it fills nothing."""
    return (_few_without if len(gaps) <= _MOST_GAPS else _without)(gaps, part)


def _without(gaps: tuple[Box, ...], part: Box) -> tuple[Box, ...]:
    return tuple(rest for gap in gaps for rest in minus(gap, part))


_few_without = lru_cache(_MOST)(_without)
