"""Model files that are made to take a device down, by the commands that read files: each ends in
one clear error, and in no more memory than the security page says.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.models.model_files import saved, tiny

# What docs/security.md promises above an idle command, for files of up to 64 MB.
MOST_BYTES = 3 * 64_000_000
TIMEOUT_S = 120
CLUSTER = Path(__file__).parents[2] / "docs" / "clusters" / "four-pi3.toml"
COMMANDS = (("check",), ("models", "show"), ("models", "add"), ("plan", "--cluster", str(CLUSTER)))
# The command line's main, then what it took, after its own words on standard error.
RUN = """
import resource, sys
from imbrex.cli.app import main
code = 0
try:
    main()
except SystemExit as ended:
    code = ended.code
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10, file=sys.stderr)
raise SystemExit(code)
"""


def ran(*arguments: object) -> tuple[int, str, int]:
    """The exit code, what was said on standard error, and the peak of resident memory."""
    done = subprocess.run(
        ["prlimit", f"--as={6 << 30}", sys.executable, "-c", RUN, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    *said, peak = done.stderr.strip().splitlines()
    assert peak.startswith("peak "), done.stderr[-2000:]
    return done.returncode, "\n".join(said), int(peak.split()[1])


@pytest.fixture(scope="module")
def idle_bytes(tmp_path_factory: pytest.TempPathFactory) -> int:
    """What a command takes that reads a small network."""
    folder = tmp_path_factory.mktemp("idle")
    code, said, peak = ran("models", "show", saved(folder, tiny()))
    assert code == 0, said
    return peak


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field of protobuf."""
    size, length = len(content), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def with_graph(path: Path, content: bytes) -> Path:
    """A small model whose graph goes on with this; protobuf joins messages that repeat."""
    path.write_bytes(tiny().SerializeToString() + field(7, content))
    return path


def million_nodes(folder: Path) -> Path:
    return with_graph(folder / "m.onnx", field(1, field(4, b"Abs")) * 1_300_000)


def million_initialisers(folder: Path) -> Path:
    return with_graph(folder / "m.onnx", field(5, b"") * 10_000_000)


def million_names(folder: Path) -> Path:
    model = tiny().SerializeToString() + field(14, b"") * 10_000_000  # metadata
    (folder / "m.onnx").write_bytes(model)
    return folder / "m.onnx"


def long_list(folder: Path) -> Path:
    """Numbers of a byte each, of eight in memory."""
    attribute = field(1, b"pads") + field(8, b"\1" * 50_000_000)
    return with_graph(folder / "m.onnx", field(1, field(5, attribute)))


def claimed(folder: Path) -> Path:
    """Weights of 2 GB, of which 432 bytes are there."""
    model = tiny()
    model.graph.initializer[0].dims[0] = 2**29 // 27
    return saved(folder, model)


def claimed_outside(folder: Path) -> Path:
    model = tiny()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.dims[0] = 2**28 // 27
    weight.external_data.add(key="location", value="weights")
    (folder / "weights").write_bytes(b"\0" * 432)
    return saved(folder, model)


def elsewhere(target: str) -> Callable[[Path], Path]:
    """Weights in a file that is none of the model's."""

    def made(folder: Path) -> Path:
        path = claimed_outside(folder)
        model = onnx.load(path, load_external_data=False)
        model.graph.initializer[0].external_data[0].value = target
        if target == "link":
            (folder / "link").symlink_to("/dev/zero")
        if target == "pipe":
            os.mkfifo(folder / "pipe")
        return saved(folder, model)

    return made


def growing(op: str, count: int) -> Callable[[Path], Path]:
    """So many constants that take 8 MB each once they are computed."""

    def made(folder: Path) -> Path:
        model = tiny()
        ints = {"sizes": [2**20], "start": [0], "one": [1]}
        model.graph.initializer.extend(
            numpy_helper.from_array(np.array(values, np.int64), name)
            for name, values in ints.items()
        )
        last = "conv1"
        inputs = {
            "ConstantOfShape": ["sizes"],
            "Expand": ["one", "sizes"],
            "Tile": ["one", "sizes"],
        }[op]
        for k in range(count):
            model.graph.node.append(helper.make_node(op, inputs, [f"large{k}"]))
            model.graph.node.append(helper.make_node("ReduceMax", [f"large{k}"], [f"max{k}"]))
            model.graph.node.append(helper.make_node("Cast", [f"max{k}"], [f"c{k}"], to=1))
            model.graph.node.append(helper.make_node("Mul", [last, f"c{k}"], [f"x{k}"]))
            last = f"x{k}"
        model.graph.output[0].name = last
        return saved(folder, model)

    return made


def repeated(folder: Path) -> Path:
    """A function with a constant of a megabyte, called 5,000 times."""
    model = tiny()
    constant = numpy_helper.from_array(np.zeros(250_000, np.float32), "large")
    opset = [helper.make_opsetid("", 17)]
    body = [
        helper.make_node("Constant", [], ["c"], value=constant),
        helper.make_node("ReduceMax", ["c"], ["m"]),
        helper.make_node("Add", ["x", "m"], ["y"]),
    ]
    model.functions.append(helper.make_function("own", "Large", ["x"], ["y"], body, opset))
    model.opset_import.add(domain="own", version=1)
    last = "conv1"
    for k in range(3_000):
        model.graph.node.append(helper.make_node("Large", [last], [f"x{k}"], domain="own"))
        last = f"x{k}"
    model.graph.output[0].name = last
    return saved(folder, model)


def doubling(folder: Path) -> Path:
    """Functions that call the one before twice: 2^60 nodes."""
    model = tiny()
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    for k in range(60):
        op, domain = ("Abs", "") if k == 0 else (f"F{k - 1}", "own")
        body = [
            helper.make_node(op, ["x"], ["h"], domain=domain),
            helper.make_node(op, ["h"], ["y"], domain=domain),
        ]
        model.functions.append(helper.make_function("own", f"F{k}", ["x"], ["y"], body, opset))
    model.opset_import.add(domain="own", version=1)
    model.graph.node.append(helper.make_node("F59", ["conv1"], ["end"], domain="own"))
    model.graph.output[0].name = "end"
    return saved(folder, model)


def tall(folder: Path) -> Path:
    """A map of one column and a hundred million rows, within what a tensor may take."""
    model = tiny()
    for each in (model.graph.input[0], model.graph.output[0]):
        dims = each.type.tensor_type.shape.dim
        dims[2].dim_value, dims[3].dim_value = 10**8, 1
    return saved(folder, model)


def texts(folder: Path) -> Path:
    model = tiny()
    model.graph.initializer.append(
        TensorProto(
            name="t", data_type=TensorProto.STRING, dims=[2], string_data=[b"a" * 10**6, b"b"]
        )
    )
    model.graph.node.append(helper.make_node("Identity", ["t"], ["u"]))
    return saved(folder, model)


def sparse(folder: Path) -> Path:
    model = tiny()
    values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "i")
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, indices, [2**31, 2**31])
    )
    return saved(folder, model)


def nested(folder: Path) -> Path:
    """Messages in messages, far deeper than any network."""
    content = b""
    for _ in range(5_000):
        content = field(1, field(5, field(6, content)))
    return with_graph(folder / "m.onnx", content)


REFUSED: dict[str, Callable[[Path], Path]] = {
    "a million nodes": million_nodes,
    "ten million initialisers": million_initialisers,
    "ten million lines of metadata": million_names,
    "a list of fifty million numbers": long_list,
    "weights that are not there": claimed,
    "weights that are not in their file": claimed_outside,
    "weights in another folder": elsewhere("../../etc/passwd"),
    "weights in a device": elsewhere("/dev/zero"),
    "weights behind a link": elsewhere("link"),
    "weights in a pipe": elsewhere("pipe"),
    "a function of a megabyte, many times": repeated,
    "functions that double": doubling,
    "texts": texts,
    "sparse weights": sparse,
    "deep nesting": nested,
}
READ: dict[str, Callable[[Path], Path]] = {
    "ConstantOfShape": growing("ConstantOfShape", 60),
    "Expand": growing("Expand", 60),
    "Tile": growing("Tile", 12),
    "a map of a hundred million rows": tall,
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_hostile_model_is_refused_in_bounded_memory(
    what: str, tmp_path: Path, idle_bytes: int
) -> None:
    path = REFUSED[what](tmp_path)
    code, said, peak = ran("models", "show", path)
    assert code == 1, said
    assert said.count("error") <= 1
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 8, said
    assert peak - idle_bytes <= MOST_BYTES, f"{(peak - idle_bytes) / 1e6:.1f} MB"


@pytest.mark.parametrize(
    "command",
    [*COMMANDS[::2], *(pytest.param(each, marks=pytest.mark.slow) for each in COMMANDS[1::2])],
    ids=lambda words: words[-1] if len(words) < 3 else words[0],
)
@pytest.mark.parametrize("what", ["a million nodes", "weights in a pipe", "functions that double"])
def test_every_command_that_reads_a_model_refuses_it(
    command: tuple[str, ...], what: str, tmp_path: Path, idle_bytes: int, store: str
) -> None:
    code, said, peak = ran(*command, REFUSED[what](tmp_path))
    assert code == 1, said
    assert "Traceback" not in said
    assert peak - idle_bytes <= MOST_BYTES, f"{(peak - idle_bytes) / 1e6:.1f} MB"


@pytest.mark.parametrize("what", READ)
def test_tensors_that_would_be_large_are_not_made_before_they_run(
    what: str, tmp_path: Path, idle_bytes: int
) -> None:
    code, said, peak = ran("models", "show", READ[what](tmp_path))
    assert "Traceback" not in said
    assert code in (0, 1)
    assert peak - idle_bytes <= MOST_BYTES, f"{(peak - idle_bytes) / 1e6:.1f} MB"
