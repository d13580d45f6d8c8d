"""Units that are alike: what one of them reads and computes, the other does by its own names."""

from collections.abc import Callable

import pytest

from models.cut.alike_units import Likenesses
from models.cut.units import Network, divide
from models.onnx_file.builder import NetworkBuilder as Builder
from models.onnx_file.builder import NetworkTensor, square
from models.onnx_file.importer import load_graph
from models.operators.work import works
from models.tensors.boxes import Box, Span
from tests.planning.support import real

Layer = Callable[[NetworkTensor, str], NetworkTensor]


def network(*layers: Layer) -> Network:
    """These layers in turn, of random weights."""
    net = Builder("layers", seed=1)
    x = net.input("image", (1, 8, 24, 24))
    for index, layer in enumerate(layers):
        x = layer(x, f"layer{index}")
    return divide(load_graph(net.model(x), "layers"))


def conv(kernel: int, **more: int) -> Layer:
    return lambda x, name: x.conv(name, 8, square(kernel), **more).relu()


def alike(made: Network) -> list[int]:
    """The first unit that each is like."""
    found = Likenesses(made.graph)
    starts = [unit.start for unit in made.units]
    return [starts.index(found.of(unit).first.start) for unit in made.units]


def test_units_are_alike_whatever_their_names_and_weights() -> None:
    assert alike(network(conv(3), conv(3), conv(1), conv(3))) == [0, 0, 2, 0]


def test_other_windows_groups_and_sizes_are_not_alike() -> None:
    others = [conv(3), conv(3, groups=2), conv(5), conv(3)]
    assert alike(network(*others)) == [0, 1, 2, 0]
    halved = network(lambda x, name: conv(3)(x, name).max_pool(f"{name}p", square(2, 2)), conv(3))
    assert alike(halved) == [0, 1]


def shifted(top: int) -> Layer:
    """A convolution, and its map moved down: a Pad, whose pads are a constant."""

    def layer(x: NetworkTensor, name: str) -> NetworkTensor:
        x, net = conv(3)(x, name), x.network
        pads = net.integers(f"{name}.pads", (0, 0, top, 0, 0, 0, 2 - top, 0))
        padded = net.node("Pad", f"{name}.pad", [x.name, pads], (1, 8, x.shape[2] + 2, x.shape[3]))
        return padded.max_pool(f"{name}.pool", (square(3, pad=0)[0], square(3)[1]))

    return layer


def test_constants_that_say_what_is_read_are_compared() -> None:
    assert alike(network(shifted(0), shifted(2), shifted(0))) == [0, 1, 0]


@pytest.mark.parametrize("name", ["shufflenetv2", "mobilenetv3", "yolov8n", "inceptionv3"])
def test_a_tile_of_one_is_that_of_the_other_renamed(name: str) -> None:
    made = real(name)
    graph, likenesses, compared = made.graph, Likenesses(made.graph), 0
    for unit in made.units:
        like = likenesses.of(unit)
        if like.first is unit:
            continue
        whole = {each: Box.whole(graph.shape(each)) for each in unit.outputs}
        halves = {
            each: box.replace(2, Span(len(box[2]) // 3, len(box[2])))
            for each, box in whole.items()
            if len(box) > 2
        }
        for boxes in (whole, whole | halves):
            there = {like.there[each]: box for each, box in boxes.items()}
            mine, first = unit.extent(boxes), like.first.extent(there)
            named = {like.here[each]: box for each, box in first.inputs.items()}
            assert mine.inputs == named
            assert mine.reads == first.reads
            assert works(graph, unit.nodes, mine) == works(graph, like.first.nodes, first)
            compared += 1
    assert compared, "no two units were alike"
