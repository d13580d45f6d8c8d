"""The precision that a model's answers promise, and how programs tell it to the devices.

`exact` is float32 throughout. With `fp16`, maps may travel and devices may compute in half
precision; with `int8`, maps may travel in 8 bits, and devices may round a quantised network
differently. The last two change the answer a little, so a user has to allow them for a model.
"""

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import onnx

# The encodings of tensors between blocks: float32, half precision, or 8 bits with a scale and a
# zero point per channel. The last two change the answer a little, so a user has to allow them.
Wire = Literal["exact", "fp16", "int8"]
WIRES: tuple[Wire, ...] = ("exact", "fp16", "int8")

# What maps travel in at most is what arithmetic is done in at least.
Precision: TypeAlias = Wire

_KEY = "precision"


def write_precision(model: "onnx.ModelProto", precision: Precision) -> None:
    """Notes the precision in a program; `exact` needs no note."""
    if precision != "exact":
        model.metadata_props.add(key=_KEY, value=precision)


def read_precision(model: "onnx.ModelProto") -> Precision:
    """The precision that a program needs: `exact` if it is not noted, or unknown here."""
    found = {entry.key: entry.value for entry in model.metadata_props}.get(_KEY)
    return next((wire for wire in WIRES if wire == found), "exact")
