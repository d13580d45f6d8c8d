"""Operators that move elements between rows, columns and channels."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.models.random_graphs import Draw, Drawing, Proposed

Pick = st.sampled_from


def depth_space(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    attributes: dict[str, object] = {"blocksize": draw(Pick([2, 2, 3]))}
    op = draw(Pick(["SpaceToDepth", "DepthToSpace", "DepthToSpace"]))
    if op == "DepthToSpace" and drawing.opset >= 11:
        attributes["mode"] = draw(Pick(["DCR", "CRD"]))
    return Proposed(op, [source], attributes)


def reshape(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """Channels, rows and columns taken apart or put together, as far as they divide."""
    shape = list(drawing.values[source].shape)
    for _ in range(draw(st.integers(1, 3))):
        axis = draw(st.integers(1, len(shape) - 1))
        factor = draw(Pick([2, 2, 3]))
        if draw(st.integers(0, 2)) and shape[axis] % factor == 0:
            parts = [factor, shape[axis] // factor]
            shape[axis : axis + 1] = parts if draw(st.booleans()) else parts[::-1]
        elif axis + 1 < len(shape):
            shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    return Proposed("Reshape", [source, drawing.ints(*shape)])


def transpose(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    rank = drawing.values[source].ndim
    return Proposed("Transpose", [source], {"perm": [0, *draw(st.permutations(range(1, rank)))]})


def shuffle(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """A channel shuffle, a detector's head or Darknet's reorg, whole."""
    shape = drawing.values[source].shape
    if len(shape) != 4:
        return None
    _, c, h, w = shape
    ways = []
    if c % 2 == 0:
        ways.append(([1, 2, c // 2, h, w], [0, 2, 1, 3, 4], [1, c, h, w]))
        ways.append(([1, 2, c // 2, h, w], [0, 1, 3, 4, 2], None))
    if c % 4 == 0 and h % 2 == 0 and w % 2 == 0:
        taken = [1, c // 4, h, 2, w, 2]
        ways.append((taken, [0, 3, 5, 1, 2, 4], [1, 4 * c, h // 2, w // 2]))
    if not ways:
        return None
    apart, perm, together = draw(Pick(ways))
    first = drawing.add(Proposed("Reshape", [source, drawing.ints(*apart)]))
    if first is None:
        return None
    moved = Proposed("Transpose", first, {"perm": perm})
    if together is None:
        return moved
    second = drawing.add(moved)
    return second and Proposed("Reshape", [second[0], drawing.ints(*together)])


def squeeze(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """A dimension of one element more, or less."""
    shape = drawing.values[source].shape
    ones = [axis for axis in range(1, len(shape)) if shape[axis] == 1]
    takes = bool(ones) and draw(st.booleans())
    axis = draw(Pick(ones)) if takes else draw(st.integers(1, len(shape)))
    op = "Squeeze" if takes else "Unsqueeze"
    if drawing.opset < 13:
        return Proposed(op, [source], {"axes": [axis]})
    return Proposed(op, [source, drawing.ints(axis)])


LAYOUT = {
    "depth and space": depth_space,
    "reshape": reshape,
    "transpose": transpose,
    "shuffle": shuffle,
    "squeeze": squeeze,
}
