"""What onnxruntime's optimisers write: several operators as one of their own."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.models.proposals.rows import tokens
from tests.models.proposals.windowed import conv
from tests.models.random_graphs import Draw, Drawing, Proposed

Pick = st.sampled_from
RUNTIME = "com.microsoft"
ACTIVATIONS = {
    "Relu": [],
    "Sigmoid": [],
    "Tanh": [],
    "HardSwish": [],
    "LeakyRelu": [0.2],
    "HardSigmoid": [0.3, 0.4],
    "Clip": [-0.2, 0.4],
}


def fused_conv(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """A convolution, perhaps with a residual, and an activation."""
    plain = conv(draw, drawing, source)
    if plain is None:
        return None
    inputs, attributes = [*plain.inputs, ""][:3], dict(plain.attributes)
    if draw(st.booleans()):
        made = drawing.add(plain)
        inputs += made or []
    op = draw(Pick(["", *ACTIVATIONS]))
    if op:
        attributes |= {"activation": op, "activation_params": ACTIVATIONS[op] or None}
    return Proposed("FusedConv", inputs, attributes, domain=RUNTIME)


def fused_gemm(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """A fully connected layer and an activation."""
    flat = drawing.add(Proposed("Flatten", [source], {"axis": draw(Pick([1, 2]))}))
    if flat is None:
        return None
    inner, turned = drawing.values[flat[0]].shape[1], draw(st.integers(0, 1))
    weights = drawing.floats(*((3, inner) if turned else (inner, 3)))
    bias = [drawing.floats(3)] if draw(st.booleans()) else []
    op = draw(Pick(["Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid"]))
    given: dict[str, object] = {"transB": turned, "alpha": draw(Pick([1.0, 0.5])), "activation": op}
    for key, value in zip(("alpha", "beta"), ACTIVATIONS[op], strict=False):
        given[f"activation_{key}"] = value
    return Proposed("FusedGemm", [*flat, weights, *bias], given, domain=RUNTIME)


def fused_product(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """A scaled product with weights, or of a tensor with itself, of which either is transposed."""
    shape = drawing.values[source].shape
    first, second = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    given: dict[str, object] = {"alpha": draw(Pick([1.0, 0.25])), "transA": first, "transB": second}
    if draw(st.booleans()):
        given |= {"transB": 1 - first}
        return Proposed("FusedMatMul", [source, source], given, domain=RUNTIME)
    inner = shape[-2] if first else shape[-1]
    weights = drawing.floats(*((3, inner) if second else (inner, 3)))
    if draw(st.integers(0, 9)) == 0:
        given |= {"transBatchA": 1}
    op = draw(Pick(["FusedMatMul", "TransposeMatMul"]))
    return Proposed(op, [source, weights], given, domain=RUNTIME)


def biased_gelu(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    op, bias = draw(Pick(["BiasGelu", "FastGelu"])), drawing.values[source].shape[-1]
    return Proposed(op, [source, drawing.floats(bias)], domain=RUNTIME)


def _tokens(draw: Draw, drawing: Drawing, source: str) -> str:
    """A tensor, or those of a map."""
    made = drawing.add(tokens(draw, drawing, source))
    return made[0] if made else source


def skip_norm(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """A residual of tokens, and its normalisation."""
    source = _tokens(draw, drawing, source)
    shape = drawing.values[source].shape
    if len(shape) != 3:
        return None
    others = [name for name, array in drawing.values.items() if array.shape == shape]
    skip = draw(Pick([*others, drawing.floats(*shape[draw(st.integers(0, 1)) :])]))
    scale, bias, more = (drawing.floats(shape[2], low=0.2) for _ in range(3))
    op = draw(Pick(["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"]))
    places = [scale, bias] if op == "SkipLayerNormalization" else [scale]
    inputs = [source, skip, *places, *([more] if draw(st.booleans()) else [])]
    return Proposed(op, inputs, {"epsilon": 1e-2}, domain=RUNTIME)


def fused_attention(draw: Draw, drawing: Drawing, source: str) -> Proposed | None:
    """Of tokens (N, S, C) to each other, or to those of weights."""
    source = _tokens(draw, drawing, source)
    shape = drawing.values[source].shape
    if len(shape) != 3 or max(shape) > 128:
        return None
    batch, length, width = shape
    heads = draw(Pick([each for each in (1, 2, 3) if width % each == 0]))
    given: dict[str, object] = {"num_heads": heads}
    given |= draw(Pick([{}, {"scale": 0.3}, {"unidirectional": 1}]))
    if draw(st.booleans()):
        wide = draw(Pick([width, 2 * heads]))
        given |= {} if wide == width else {"qkv_hidden_sizes": [width, width, wide]}
        inputs = [source, drawing.floats(width, 2 * width + wide)]
        inputs += [drawing.floats(2 * width + wide)]
        added = [drawing.floats(1, 1, length, length)] if draw(st.booleans()) else []
        inputs += ["", "", *added] if added else []
        return Proposed("Attention", inputs, given, domain=RUNTIME)
    count = draw(Pick([length, 5]))
    other = source if count == length else drawing.floats(batch, count, width)
    inputs = [source, other, other]
    inputs += [drawing.floats(3 * width) if draw(st.booleans()) else ""]
    if draw(st.booleans()):
        inputs += ["", drawing.floats(1, draw(Pick([1, heads])), length, count)]
    return Proposed("MultiHeadAttention", inputs, given, domain=RUNTIME)


FUSED = {
    "fused conv": fused_conv,
    "fused gemm": fused_gemm,
    "fused product": fused_product,
    "biased gelu": biased_gelu,
    "skip norm": skip_norm,
    "fused attention": fused_attention,
}
