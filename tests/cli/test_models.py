"""`imbrex models add`, `default`, `remove`: as a person and as a script use them."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from imbrex.cli.adding import Said, add
from imbrex.cli.models import default
from imbrex.picture_files import prediction
from models.catalogue.installed import Store
from models.graph.sizes import Size
from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.vision.classes import ClassSegment, Overlay
from models.vision.repainted import Repainting
from models.vision.sidecar import load, sidecar_path
from protos.errors import BadRequest, NotFound
from tests.cli.run_cli import imbrex, refused
from tests.serving.camera import save_camera

SEGMENT = ClassSegment("a", 1, 0.25, (0, 0, 4, 2), Overlay((0, 0, 8, 4), np.eye(4, dtype=bool)))
PICTURE = Repainting(Image.new("RGB", (4, 3), (1, 2, 3)))


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """A classifier of four classes, without a sidecar."""
    net = NetworkBuilder("birds", seed=2)
    x = net.input("image", (1, 3, 32, 32)).conv("conv", 4, square(3)).relu()
    path = tmp_path / "birds.onnx"
    onnx.save(net.model(x.global_average_pool("mean").flatten("flat").gemm("fc", 4)), path)
    return path


def test_a_file_with_its_sidecar_is_added_listed_and_removed(store: str, tmp_path: Path) -> None:
    file = save_camera(tmp_path)
    added = imbrex("models", "add", file, "--default", "--json").json()
    about = {"name": "camera", "version": 1, "task": "detection", "default": True}
    assert added == about | {"assumed": {}}
    add(file, Said(), default=False, as_json=True)
    row = next(
        row
        for row in imbrex("models", "list", "--json").json()["models"]
        if row["name"] == "camera"
    )
    assert (row["task"], row["versions"], row["default"]) == ("detection", [1, 2], True)
    assert Store().defaults() == {"detection": "camera"}
    shown = imbrex("models", "show", "camera", "--json")
    assert shown.json()["model"] == "camera"
    gone = imbrex("models", "remove", "camera", "--version", "1", "--json").json()
    assert gone == {"name": "camera", "removed": [1]}
    assert "removed camera, version 2" in imbrex("models", "remove", "camera").out
    refused("models", "remove", "camera")
    with pytest.raises(NotFound):
        default("camera", as_json=True)
    assert not Store(Path(store)).installed()


def test_a_model_is_added_with_a_precision(store: str, tmp_path: Path) -> None:
    file = save_camera(tmp_path)
    imbrex("models", "add", file, "--name", "exactly", "--json")
    imbrex("models", "add", file, "--name", "roughly", "--precision", "fp16", "--json")
    found = {each.name: load(sidecar_path(each.latest)) for each in Store().installed().values()}
    assert (found["exactly"].precision, found["roughly"].precision) == ("exact", "fp16")
    wrong = imbrex("models", "add", file, "--precision", "half")
    assert wrong.code == 2
    assert "--precision" in wrong.err


def test_options_add_what_a_file_does_not_say(store: str, birds: Path) -> None:
    labels = birds.with_suffix(".txt")
    labels.write_text("robin\nwren\n\ncrow\njay\n")
    ran = imbrex("models", "add", birds, "--labels", labels, "--pixels", "imagenet", "--json")
    assert ran.json()["task"] == "classification"
    found = Store(Path(store)).find("birds")
    assert found is not None
    sidecar = load(sidecar_path(found.latest))
    assert sidecar.labels == ("robin", "wren", "crow", "jay")
    assert sidecar.input.std == (0.229, 0.224, 0.225)


def test_missing_options_are_all_named_without_a_terminal(store: str, birds: Path) -> None:
    ran = refused("models", "add", birds, "--task", "classification")
    assert "--labels, --pixels" in ran.err
    assert "--task tensor" in ran.err
    assert not Store(Path(store)).installed()


def saved(path: Path, *outputs: NetworkTensor) -> Path:
    onnx.save(outputs[0].network.model(*outputs), path)
    return path


def text(path: Path) -> Path:
    """A recogniser of text: 40 places, 97 characters."""
    net = NetworkBuilder("text", seed=2)
    x = net.input("image", (1, 3, 32, 160)).conv("conv", 97, square(3)).relu()
    mean = x.global_average_pool("mean").flatten("flat")
    sizes = net.integers("sizes", (1, 40, 97))
    y = net.node("Expand", "wide", [mean.name, sizes], (1, 40, 97))
    return saved(path, net.node("Softmax", "y", [y.name], (1, 40, 97), axis=-1))


def of_tensors(path: Path, shape: tuple[int, ...]) -> Path:
    """A product of something that is no picture."""
    value = helper.make_tensor_value_info
    weights = numpy_helper.from_array(np.ones((shape[-1], 4), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [value("x", TensorProto.FLOAT, shape)],
        [value("y", TensorProto.FLOAT, [*shape[:-1], 4])],
        [weights],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_outputs_that_nothing_speaks_for_are_tensors_and_that_is_said(
    store: str, birds: Path, tmp_path: Path
) -> None:
    """An embedding and a recogniser of text look like a classifier and a detector."""
    for file, possible in ((birds, "scores of 4 classes"), (text(tmp_path / "t.onnx"), "boxes")):
        ran = imbrex("models", "add", file)
        assert f"added {file.stem}, version 1: tensor" in ran.out
        assert "assumed task: tensor: its output" in ran.out
        assert possible in ran.out
        assert "--task gives another" in ran.out
        assert f"imbrex models confirm {file.stem}" in ran.out
        added = Store(Path(store)).find(file.stem)
        assert added is not None
        assert set(load(sidecar_path(added.latest)).assumed) == {"task", "pixels"}


@pytest.mark.parametrize("shape", [(1, 8), (1, 16, 8), (1, 2, 4, 6, 8), (1, 5, 6, 7)])
def test_a_network_that_takes_no_picture_is_added_as_tensors(
    store: str, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    file = of_tensors(tmp_path / "product.onnx", shape)
    ran = imbrex("models", "add", file)
    assert "try it: imbrex infer TENSORS.npz --model product" in ran.out
    added = Store(Path(store)).find("product")
    assert added is not None
    assert load(sidecar_path(added.latest)).input is None
    assert imbrex("models", "show", "product", "--json").json()["inputs"][0]["shape"] == [*shape]
    ran = refused("models", "add", file, "--task", "detection", "--labels", "a", "--pixels", "unit")
    assert "takes no picture: its inputs are x float32" in ran.err
    assert "--task tensor" in ran.err


def test_assumptions_are_confirmed(store: str, tmp_path: Path) -> None:
    net = NetworkBuilder("yard", seed=2)
    x = net.input("image", (1, 3, 32, 32)).conv("conv", 8, square(3)).relu()
    scores = x.global_average_pool("mean").flatten("flat").gemm("fc", 1000)
    file = saved(tmp_path / "yard.onnx", scores)
    added = imbrex("models", "add", file, "--pixels", "imagenet", "--json").json()
    assert added["task"] == "classification"
    assert added["assumed"] == {
        "task": "classification: it has as many classes as ImageNet (1000)",
        "labels": "ImageNet's, by their number (1000)",
    }
    assert "confirmed labels: ImageNet's" in imbrex("models", "confirm", "yard").out
    installed = Store(Path(store)).find("yard")
    assert installed is not None
    assert [*installed.versions] == [2]
    assert not load(sidecar_path(installed.latest)).assumed
    assert "nothing is assumed" in imbrex("models", "confirm", "yard").out
    assert [*Store(Path(store)).find("yard").versions] == [2]
    refused("models", "confirm", "nothing")


def test_boxes_of_unknown_form_are_refused_before_labels_are_asked_for(
    store: str, tmp_path: Path
) -> None:
    """Logits and boxes of a DETR."""
    net = NetworkBuilder("detr", seed=2)
    x = net.input("image", (1, 3, 32, 32)).conv("conv", 8, square(3)).relu()
    mean = x.global_average_pool("mean").flatten("flat").gemm("fc", 1)
    ends = [
        net.node("Expand", name, [mean.name, net.integers(f"{name}s", shape)], shape)
        for name, shape in (("logits", (1, 30, 8)), ("boxes", (1, 30, 4)))
    ]
    ran = refused("models", "add", saved(tmp_path / "detr.onnx", *ends))
    assert "the form of the boxes" in ran.err
    assert "--task tensor" in ran.err


def test_missing_options_are_asked_for_on_a_terminal(store: str, birds: Path) -> None:
    here, there = pty.openpty()
    asking = subprocess.Popen(
        [sys.executable, "-m", "imbrex", "models", "add", str(birds), "--json"],
        stdin=there,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(there)
    os.write(here, b"birds\nclassification\na,b,c,d\nfeathers\nunit\n")
    out, err = asking.communicate(timeout=60)
    os.close(here)
    assert asking.returncode == 0, err
    assert "Its output (1, 4) may be scores of 4 classes" in err
    assert "What is it for?" in err
    assert "4 labels" in err
    assert "not one of imagenet" in err
    assert '"task": "classification"' in out
    found = Store(Path(store)).find("birds")
    assert found is not None
    assert load(sidecar_path(found.latest)).labels == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (Said(labels="a,b", pixels="unit", task="classification"), "does not fit"),
        (Said(labels="a,b,c,d", pixels="unit", task="detection"), "boxes"),
        (Said(name="digits"), "built-in model"),
        (Said(name="../birds", labels="a,b,c,d", pixels="unit"), "model's name"),
        (Said(labels="none.txt", pixels="unit"), r"none\.txt"),
        (Said(sidecar=Path("none.json")), r"none\.json"),
        (Said(size=Size(16, 16), labels="a,b,c,d", pixels="unit"), "fixed"),
        (Said(licence=" ", labels="a,b,c,d", pixels="unit"), "key 'licence' of sidecar is ' '"),
    ],
)
def test_model_that_cannot_be_added_leaves_nothing(
    store: str, birds: Path, said: Said, told: str
) -> None:
    with pytest.raises(BadRequest, match=told) as caught:
        add(birds, said, default=False, as_json=True)
    assert caught.value.cure
    assert not Store(Path(store)).installed()


def test_a_sidecar_of_another_model_is_refused(store: str, birds: Path, tmp_path: Path) -> None:
    camera = save_camera(tmp_path)
    shutil.copy(sidecar_path(camera), sidecar_path(birds))
    with pytest.raises(BadRequest, match="fixed"):
        add(birds, Said(), default=False, as_json=True)
    with pytest.raises(NotFound):
        add(tmp_path / "none.onnx", Said(), default=False, as_json=True)
    assert not Store(Path(store)).installed()


@pytest.mark.parametrize("seen", [SEGMENT, PICTURE])
def test_predictions_are_read_back_from_their_json(seen: ClassSegment | Repainting) -> None:
    back = prediction(seen.as_json())
    assert back.as_json() == seen.as_json()
    assert type(back) is type(seen)
