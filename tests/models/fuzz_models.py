"""Reads seeded damaged models in this process; the test that runs it bounds its time and memory.

    python -m tests.models.fuzz_models FOLDER SEED COUNT

Prints one JSON object: how many were read, how many refused with which error. Any other exception
ends it, with the number of the case.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper

from models.catalogue import catalogue
from models.check.check import check, fused
from models.cut.units import divide
from models.onnx_file.builder import NetworkBuilder, square
from models.onnx_file.importer import load_graph
from protos.errors import ImbrexError

# As files that a model may try to name; none may be opened.
OUTSIDE = ("/etc/passwd", "../secret.bin", "/proc/self/environ", "a/../../secret.bin", "/dev/zero")
NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 255, 2**20, 2**31 - 1, 2**40, 2**62)


def seed_model() -> ModelProto:
    """A small network with as many kinds of field as the reader looks at."""
    net = NetworkBuilder("seed", seed=1)
    x = net.input("image", (1, 4, 12, 10))
    x = x.conv("conv1", 8, square(3)).relu().max_pool("pool", square(2, 2))
    left, right = net.split("split", x, (4, 4))
    right = right.conv("conv2", 4, square(3), groups=2, bias=False).norm()
    x = net.concat("concat", [left, right.add("sum", left)])
    sides = net.integers("shape", [1, 8, 5, 6])
    x = net.node("Reshape", "reshape", [x.name, sides], (1, 8, 5, 6))
    model = net.model(x.conv("conv3", 2, square(1)).flatten("flatten").gemm("fc", 3))
    size = helper.make_node("Shape", ["reshape"], ["sizes"], name="sizes")
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.5])
    filled = helper.make_node("ConstantOfShape", ["sizes"], ["filled"], name="filled", value=value)
    added = helper.make_node("Add", ["reshape", "filled"], ["added"], name="added")
    index = next(i for i, node in enumerate(model.graph.node) if node.name == "conv3")
    model.graph.node[index].input[0] = "added"
    for offset, node in enumerate((size, filled, added)):
        model.graph.node.insert(index + offset, node)
    return model


def _node(rng: random.Random, model: ModelProto) -> NodeProto:
    return rng.choice(list(model.graph.node) or [NodeProto()])


def _tensor(rng: random.Random, model: ModelProto) -> TensorProto:
    return rng.choice(list(model.graph.initializer) or [TensorProto()])


def _names(model: ModelProto) -> list[str]:
    made = [name for node in model.graph.node for name in node.output]
    return [*made, *(each.name for each in model.graph.initializer), "image", "", "nowhere"]


def _rewire(rng: random.Random, model: ModelProto) -> None:
    node = _node(rng, model)
    names = node.input if rng.random() < 0.7 else node.output
    if names:
        names[rng.randrange(len(names))] = rng.choice(_names(model))


def _drop(rng: random.Random, model: ModelProto) -> None:
    graph = model.graph
    fields = (graph.node, graph.initializer, graph.input, graph.output, model.opset_import)
    field = rng.choice(fields)
    if len(field):
        del field[rng.randrange(len(field))]


def _other_operator(rng: random.Random, model: ModelProto) -> None:
    operators = "Conv Loop If Resize Pad Tile Expand Range OneHot Gemm Einsum Dropout Foo Scan"
    _node(rng, model).op_type = rng.choice(operators.split())


def _attribute(rng: random.Random, model: ModelProto) -> None:
    node = _node(rng, model)
    if not node.attribute or rng.random() < 0.2:
        names = ("axis", "group", "pads", "auto_pad", "kernel_shape", "strides", "ceil_mode")
        value = rng.choice([[rng.choice(NUMBERS)] * 4, rng.choice(NUMBERS), b"SAME_UPPER", 0.5])
        node.attribute.append(helper.make_attribute(rng.choice(names), value))
        return
    attribute: AttributeProto = rng.choice(list(node.attribute))
    attribute.i = rng.choice(NUMBERS)
    if attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
    if rng.random() < 0.3:
        attribute.type = rng.choice(list(AttributeProto.AttributeType.values()))


def _dims(rng: random.Random, model: ModelProto) -> None:
    if rng.random() < 0.5:
        tensor = _tensor(rng, model)
        if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
        return
    values = [*model.graph.input, *model.graph.output]
    dims = rng.choice(values).type.tensor_type.shape.dim if values else []
    if dims:
        rng.choice(list(dims)).dim_value = rng.choice(NUMBERS)


def _type(rng: random.Random, model: ModelProto) -> None:
    kind = rng.choice([*TensorProto.DataType.values(), 99, -1])
    if rng.random() < 0.5:
        _tensor(rng, model).data_type = kind
    elif model.graph.input:
        model.graph.input[0].type.tensor_type.elem_type = kind


def _content(rng: random.Random, model: ModelProto) -> None:
    tensor = _tensor(rng, model)
    if rng.random() < 0.5 or tensor.data_type != TensorProto.INT64:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
        return
    values = np.frombuffer(tensor.raw_data[: len(tensor.raw_data) // 8 * 8], np.int64).copy()
    if values.size:
        values[rng.randrange(values.size)] = rng.choice(NUMBERS)
        tensor.raw_data = values.tobytes()


def _external(rng: random.Random, model: ModelProto) -> None:
    tensor = _tensor(rng, model)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.ClearField("raw_data")
    tensor.external_data.add(key="location", value=rng.choice(OUTSIDE))
    if rng.random() < 0.5:
        tensor.external_data.add(key="offset", value=str(rng.choice(NUMBERS)))


def _opset(rng: random.Random, model: ModelProto) -> None:
    if model.opset_import:
        model.opset_import[0].version = rng.choice((7, 8, 9, 10, 11, 13, 18, 23, 24, 0, -1))


CHANGES: tuple[Callable[[random.Random, ModelProto], None], ...] = (
    *(_rewire, _drop, _other_operator, _attribute, _dims, _type, _content, _external, _opset),
)


def damaged(rng: random.Random, whole: ModelProto) -> bytes:
    """A copy with some fields changed, or with some bytes changed, cut out or put in."""
    model = ModelProto()
    model.CopyFrom(whole)
    if rng.random() < 0.6:
        for _ in range(rng.randint(1, 3)):
            rng.choice(CHANGES)(rng, model)
        return bytes(model.SerializeToString())
    content = bytearray(model.SerializeToString())
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(content))
        match rng.randrange(4):
            case 0:
                content[at] = rng.randrange(256)
            case 1:
                del content[at : at + rng.randint(1, 50)]
            case 2:
                content[at:at] = rng.randbytes(rng.randint(1, 20))
            case _:
                content[at] ^= 1 << rng.randrange(8)
    return bytes(content)


def read(path: Path) -> str:
    """`read`, also cut and run, or the code of the error that refused it."""
    try:
        loaded = catalogue.load(path)
        network = divide(load_graph(loaded.proto, loaded.name))
        check(loaded.proto, network, (2, 2), fused(network))
    except ImbrexError as error:
        return error.code if error.cause and error.cure else "an error without cause or cure"
    return "read"


def main(folder: Path, seed: int, count: int) -> None:
    """Reads `count` damaged models."""
    opened: list[str] = []
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
    whole = seed_model()
    outcomes: Counter[str] = Counter()
    path = folder / "model.onnx"
    for case in range(count):
        print(f"case {case}", file=sys.stderr, flush=True)
        path.write_bytes(damaged(random.Random(seed + case), whole))
        outcomes[read(path)] += 1
    # Python's own modules are read too, when they are first needed.
    foreign = {name for name in opened if name.startswith(OUTSIDE) or "secret.bin" in name}
    assert not foreign, foreign
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
