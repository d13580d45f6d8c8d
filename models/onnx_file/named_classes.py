"""Classifiers that answer in words: their scores and the names of their classes instead.

Microsoft's Custom Vision and scikit-learn's converters end a network with a map from each class's
name to its score (ZipMap), and with the name of the best one (LabelEncoder). Neither is a tensor of
numbers. The scores are an output in place of the map; the names become metadata, as Ultralytics
writes them, from which labels are read; the best one is left out, as scores and names say it.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from protos.errors import BadRequest

_ML = "ai.onnx.ml"
# Where names of classes are, in the metadata of a model.
NAMES = "names"


def with_scores(model: ModelProto) -> None:
    """Replaces maps from names to scores by scores, in place, and leaves out names of the best.

    Raises:
        BadRequest: an output is no tensor of numbers, and none of these.
    """
    maker = {name: node for node in model.graph.node for name in node.output}
    kept: list[ValueInfoProto] = []
    for value in model.graph.output:
        node = maker.get(value.name)
        if node is None or not _is_of(node, "ZipMap"):
            kept.append(value)
            continue
        if not any(each.key == NAMES for each in model.metadata_props):
            model.metadata_props.add(key=NAMES, value=str(dict(enumerate(_names(node)))))
        scores = helper.make_node("Identity", node.input, node.output, node.name)
        node.CopyFrom(scores)
        kept.append(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, None))
    numbers = [value for value in kept if not _is_name(value, maker.get(value.name))]
    for value in numbers or kept:
        _require_numbers(value)
    if len(numbers) < len(model.graph.output) or kept != [*model.graph.output]:
        del model.graph.output[:]
        model.graph.output.extend(numbers)


def _is_of(node: NodeProto, op: str) -> bool:
    return node.domain == _ML and node.op_type == op


def _names(node: NodeProto) -> list[str]:
    """Of the classes of a ZipMap, by its attributes."""
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    texts: list[bytes] = given.get("classlabels_strings", [])
    numbers: list[int] = given.get("classlabels_int64s", [])
    return [each.decode(errors="replace") for each in texts] or [str(each) for each in numbers]


def _is_name(value: ValueInfoProto, node: NodeProto | None) -> bool:
    is_text = value.type.tensor_type.elem_type == TensorProto.STRING
    return is_text and node is not None and _is_of(node, "LabelEncoder")


def _require_numbers(value: ValueInfoProto) -> None:
    kind = value.type.WhichOneof("value")
    is_text = kind == "tensor_type" and value.type.tensor_type.elem_type == TensorProto.STRING
    if kind in (None, "tensor_type") and not is_text:
        return
    what = "text" if is_text else str(kind).removesuffix("_type").replace("_", " ")
    raise BadRequest(
        cause=f"the output {value.name!r} is no tensor of numbers, but {what}",
        cure="Export the model without it, or with the scores that it is made of.",
    )
