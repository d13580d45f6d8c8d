"""Operators that compute every element from those at its own place."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.models.random_graphs import Draw, Drawing, Proposed

Pick = st.sampled_from
SMOOTH = (
    "Relu Sigmoid HardSwish Tanh Softplus Softsign Abs Neg Exp Erf Mish Sin Cos Sinh Cosh Asinh "
    "Atan Identity Dropout Swish"
)
# Where these jump, the last bit of their input decides: they take the network's own input, which
# is exact.
JUMPING = "Floor Ceil Sign Round"
# Undefined, or beyond any bound, elsewhere: poles make the last bit of an input decide.
POSITIVE = "Log Sqrt Reciprocal Acos Asin Atanh Acosh Pow Tan"
COMPARING = "Greater GreaterOrEqual Less LessOrEqual Equal"
LOGICAL = "And Or Xor"
BITWISE = "BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift"
RUNTIME = "com.microsoft"
_FLOAT, _UINT8, _INT32 = 1, 2, 6


def activation(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    return Proposed(draw(Pick(SMOOTH.split())), [source])


def bent(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """An activation that its attributes shape."""
    some = st.floats(0.125, 1.5, width=32)
    shapes: dict[str, tuple[str, ...]] = {
        "LeakyRelu": ("alpha",),
        "Elu": ("alpha",),
        "Celu": ("alpha",),
        "HardSigmoid": ("alpha", "beta"),
        "Selu": ("alpha", "gamma"),
        "QuickGelu": ("alpha",),
        "Gelu": (),
        "FastGelu": (),
    }
    op = draw(Pick(sorted(shapes)))
    given: dict[str, object] = {key: draw(some) for key in shapes[op]}
    foreign = op in ("QuickGelu", "FastGelu") or (op == "Gelu" and drawing.opset < 20)
    if op == "Gelu" and not foreign:
        given["approximate"] = draw(Pick(["none", "tanh"]))
    return Proposed(op, [source], given, domain=RUNTIME if foreign else "")


def jump(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    op = draw(Pick([*JUMPING.split(), "ThresholdedRelu", "Shrink"]))
    level = draw(st.floats(0.125, 0.75, width=32))
    attributes = {"ThresholdedRelu": {"alpha": level}, "Shrink": {"lambd": level, "bias": 0.1}}
    return Proposed(op, ["x"], attributes.get(op, {}))


def of_positive(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """What is defined between 0 and 1, or beyond 1: of values well inside, made by a sigmoid."""
    op = draw(Pick(POSITIVE.split()))
    least = np.float32(1.1 if op == "Acosh" else 0.1)
    found = drawing.add(Proposed("Sigmoid", [source]))
    for then, value in (("Mul", np.float32(0.8)), ("Add", least)):
        found = found and drawing.add(Proposed(then, [*found, drawing.weight(value)]))
    if found is None:
        return None
    power = [drawing.weight(np.float32(draw(Pick([0.5, 1.5, 2, 3]))))] if op == "Pow" else []
    return Proposed(op, [*found, *power])


def choice(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """Each element of one of two, by a condition on the network's input."""

    def condition() -> list[str] | None:
        level = drawing.floats(1, low=-0.5, high=0.5)
        op = draw(Pick([*COMPARING.split(), "IsNaN", "IsInf"]))
        operands = ["x"] if op.startswith("Is") else ["x", level]
        if op == "Equal" and drawing.opset < 11:  # of integers alone
            whole = drawing.add(Proposed("Cast", ["x"], {"to": _INT32}))
            operands = [*(whole or []), drawing.weight(np.zeros(1, np.int32))]
        made = drawing.add(Proposed(op, operands))
        return drawing.add(Proposed("Not", made)) if made and draw(st.booleans()) else made

    first, second = condition(), condition()
    if first is None or second is None:
        return None
    both = drawing.add(Proposed(draw(Pick(LOGICAL.split())), [*first, *second]))
    other = drawing.floats(*[1] * drawing.values[source].ndim)
    return both and Proposed("Where", [*both, source, other])


def bits(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """Integers of the network's input, some bits of them, and numbers again."""
    op = draw(Pick([*BITWISE.split(), "Mod"]))
    scale = drawing.weight(np.float32(60.0))
    found: list[str] | None = ["x"]
    for name, more in (("Abs", []), ("Mul", [scale])):
        found = found and drawing.add(Proposed(name, [*found, *more]))
    found = found and drawing.add(Proposed("Cast", found, {"to": _UINT8}))
    mask = drawing.weight(np.array(draw(st.integers(1, 3)), np.uint8))
    given = {"direction": draw(Pick(["LEFT", "RIGHT"]))} if op == "BitShift" else {}
    operands = [] if op == "BitwiseNot" else [mask]
    found = found and drawing.add(Proposed(op, [*found, *operands], given))
    return found and Proposed("Cast", found, {"to": _FLOAT})


def clip(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    if drawing.opset < 11:
        return Proposed("Clip", [source], {"min": -0.5, "max": 0.7})
    low, high = drawing.weight(np.float32(-0.5)), drawing.weight(np.float32(0.7))
    return Proposed("Clip", [source, *draw(Pick([(low, high), ("", high), (low,)]))])


def prelu(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    shape = drawing.values[source].shape
    slope = draw(Pick([(1,), (shape[1], *[1] * (len(shape) - 2)), shape[1:]]))
    return Proposed("PRelu", [source, drawing.floats(*slope)])


def cast(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    if draw(st.booleans()):
        return Proposed("CastLike", [source, drawing.floats(1)])
    return Proposed("Cast", [source], {"to": _FLOAT})


def silu(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """As exporters write it."""
    gate = drawing.add(Proposed("Sigmoid", [source]))
    return gate and Proposed("Mul", [source, *gate])


def batch_norm(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    channels = drawing.values[source].shape[1]
    parts = [drawing.floats(channels) for _ in range(3)]
    parts.append(drawing.floats(channels, low=0.5, high=2.0))
    return Proposed("BatchNormalization", [source, *parts], {"epsilon": draw(Pick([1e-5, 0.1]))})


def with_constant(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """An elementwise operator with a constant of any shape that broadcasts."""
    shape = list(drawing.values[source].shape)
    if drawing.values[source].dtype != np.float32:
        return None
    shape = [size if draw(st.booleans()) else 1 for size in shape][draw(st.integers(0, 4)) :]
    inputs = [source, drawing.floats(*shape, low=0.3, high=1.5)]
    op = draw(Pick(["Add", "Sub", "Mul", "Div", "Min", "Max"]))
    return Proposed(op, inputs if draw(st.booleans()) or op == "Div" else inputs[::-1])


def with_another(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """A residual, or a gate: with any earlier tensor that broadcasts."""
    others = [
        name
        for name, array in drawing.values.items()
        if array.dtype == np.float32 and _broadcasts(drawing.values[source].shape, array.shape)
    ]
    other = draw(Pick(others or [source]))
    return Proposed(draw(Pick(["Add", "Mul", "Sub", "Max", "Sum", "Mean"])), [source, other])


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return len(a) == len(b) and all(x == y or y == 1 for x, y in zip(a, b, strict=True))


ELEMENTWISE = {
    "activation": activation,
    "bent": bent,
    "silu": silu,
    "jump": jump,
    "of positive": of_positive,
    "choice": choice,
    "bits": bits,
    "clip": clip,
    "prelu": prelu,
    "cast": cast,
    "batch norm": batch_norm,
    "with a constant": with_constant,
    "with another": with_another,
}
