"""Half-open boxes of tensors: the only geometry that the wire and the workers know."""

from collections.abc import Sequence
from typing import NamedTuple

# Both are tuples: planners hash, compare and create hundreds of thousands of them, which tuples do
# without running Python code.


class Span(NamedTuple):
    """The half-open range [start, stop) of one dimension."""

    start: int
    stop: int

    def __len__(self) -> int:
        return max(0, self.stop - self.start)

    def intersect(self, other: "Span") -> "Span":
        """The common range; empty ranges come out with `stop <= start`."""
        return Span(max(self.start, other.start), min(self.stop, other.stop))

    def hull(self, other: "Span") -> "Span":
        """The smallest range that holds both."""
        return Span(min(self.start, other.start), max(self.stop, other.stop))


class Box(tuple[Span, ...]):
    """Half-open ranges of a tensor, one per dimension; a scalar has none."""

    __slots__ = ()

    @classmethod
    def of(cls, *ranges: tuple[int, int]) -> "Box":
        """`Box.of((0, 1), (0, 64), (3, 9), (0, 224))`."""
        return cls([Span(start, stop) for start, stop in ranges])

    @classmethod
    def whole(cls, shape: Sequence[int]) -> "Box":
        """All of a tensor of this shape."""
        return cls([Span(0, size) for size in shape])

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""
        return tuple([stop - start if stop > start else 0 for start, stop in self])

    @property
    def volume(self) -> int:
        """Elements inside; 1 for a scalar."""
        volume = 1
        for start, stop in self:
            if stop <= start:
                return 0
            volume *= stop - start
        return volume

    @property
    def is_empty(self) -> bool:
        """Whether it holds no element."""
        return any(stop <= start for start, stop in self)

    def replace(self, axis: int, span: Span) -> "Box":
        """The same box with another range along `axis`."""
        spans = list(self)
        spans[axis] = span
        return Box(spans)

    def intersect(self, other: "Box") -> "Box":
        """The common part; may be empty."""
        return Box([a.intersect(b) for a, b in zip(self, other, strict=True)])

    def overlaps(self, other: "Box") -> bool:
        """Whether the common part holds an element."""
        for a, b in zip(self, other, strict=True):
            start = a.start if a.start > b.start else b.start
            if start >= a.stop or start >= b.stop:
                return False
        return True

    def hull(self, other: "Box") -> "Box":
        """The smallest box that holds both; an empty box adds nothing."""
        if self == other or other.is_empty:
            return self
        if self.is_empty:
            return other
        return Box([a.hull(b) for a, b in zip(self, other, strict=True)])

    def contains(self, other: "Box") -> bool:
        """Whether every element of `other` is in this box."""
        return other.is_empty or all(
            a.start <= b.start and b.stop <= a.stop for a, b in zip(self, other, strict=True)
        )

    def slices(self, inside: "Box | None" = None) -> tuple[slice, ...]:
        """Index of this box in an array that holds `inside` (default: the whole tensor)."""
        if inside is None:
            return tuple(slice(span.start, span.stop) for span in self)
        return tuple(
            slice(span.start - outer.start, span.stop - outer.start)
            for span, outer in zip(self, inside, strict=True)
        )

    def __str__(self) -> str:
        return "x".join(f"[{span.start},{span.stop})" for span in self)


def covers_exactly(parts: Sequence[Box], whole: Box) -> bool:
    """Whether the parts lie inside `whole`, don't overlap, and leave nothing out."""
    full = [part for part in parts if not part.is_empty]
    if any(not whole.contains(part) for part in full):
        return False
    for index, part in enumerate(full):
        if any(not part.intersect(other).is_empty for other in full[:index]):
            return False
    return sum(part.volume for part in full) == whole.volume


def minus(box: Box, part: Box) -> list[Box]:
    """Disjoint boxes that cover `box` without `part`; `[box]` if the two do not intersect.

    Cuts off what lies before and after `part` along one axis after the other, at most two boxes
    per axis.
    """
    common = box.intersect(part)
    if common.is_empty:
        return [box]
    rest: list[Box] = []
    for axis, (whole, inner) in enumerate(zip(box, common, strict=True)):
        if whole.start < inner.start:
            rest.append(box.replace(axis, Span(whole.start, inner.start)))
        if inner.stop < whole.stop:
            rest.append(box.replace(axis, Span(inner.stop, whole.stop)))
        box = box.replace(axis, inner)
    return rest
