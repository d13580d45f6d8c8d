"""The rest of a box after a part has arrived."""

from models.boxes import Box, Span


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
