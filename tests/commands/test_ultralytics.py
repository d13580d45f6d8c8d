"""Ultralytics' exports for boxes, segments, poses and rotated boxes, from the file to what `imbrex
infer` prints, without a sidecar written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from models.catalogue.installed import VARIABLE
from models.onnx_file.builder import NetworkBuilder, square
from tests.cli.run_cli import imbrex
from tests.commands.conftest import Live, started
from tests.models.model_files import halved

SIDE, ANCHORS, CLASSES = 64, 84, 2
# Centre, size; score of the second class; in pixels of the network's input.
BOX, SCORE = (24.0, 32.0, 32.0, 16.0), 0.875
# More of it: weights of four prototypes, two keypoints, an angle.
MORE = {
    "detect": (),
    "segment": (1.0, 0.0, 0.0, 0.0),
    "pose": (16.0, 28.0, 0.75, 32.0, 36.0, 0.5),
    "obb": (0.5,),
}
TOLD: dict[str, dict[str, str]] = {"pose": {"kpt_shape": "[2, 3]"}}
NAMES = {
    f"{task}-{form}": (task, form) for task in MORE for form in ("columns", "finished", "half")
}


def columns(task: str) -> np.ndarray:
    """YOLO11's output (4 + classes + more, anchors), with one likely box."""
    found = np.zeros((4 + CLASSES + len(MORE[task]), ANCHORS), np.float32)
    found[:, 5] = (*BOX, 0.0, SCORE, *MORE[task])
    return found


def rows(task: str) -> np.ndarray:
    """YOLO26's (boxes, 6 + more): the corners, but of a rotated box its centre and size."""
    x, y, w, h = BOX
    place = BOX if task == "obb" else (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
    found = np.zeros((30, 6 + len(MORE[task])), np.float32)
    found[0] = (*place, SCORE, 1.0, *MORE[task])
    return found


def export(folder: Path, name: str) -> Path:
    """A network whose answer is always this, with the metadata that Ultralytics writes."""
    task, form = NAMES[name]
    net = NetworkBuilder(name, seed=1)
    x = net.input("images", (1, 3, SIDE, SIDE)).conv("conv", 1, square(3)).relu()
    mean = x.global_average_pool("mean").flatten("flat")
    zero = net.constant("zero", np.zeros((1, 1), np.float32))
    none = net.node("Mul", "none", [mean.name, zero], (1, 1))
    outputs = [rows(task) if form == "finished" else columns(task)]
    if task == "segment":
        # A prototype that is positive on its left half, below the box, too.
        prototypes = np.full((4, SIDE // 4, SIDE // 4), -1, np.float32)
        prototypes[0, :, : SIDE // 8] = 1
        outputs.append(prototypes)
    ends = []
    for number, array in enumerate(outputs):
        found = net.constant(f"found{number}", array[None])
        names = [none.name, found]
        if array.ndim == 3:
            names[0] = net.node(
                "Reshape", "none4", [none.name, net.integers("four", (1,) * 4)], ()
            ).name
        ends.append(net.node("Add", f"output{number}", names, (1, *array.shape)))
    model = net.model(*ends)
    if form == "half":
        model = halved(model)
    names = {k: f"class {k}" for k in range(CLASSES)}
    told = {"names": str(names), "task": task, "stride": "8", "imgsz": f"[{SIDE}, {SIDE}]"}
    told |= {"end2end": "True"} if form == "finished" else {}
    for key, value in (told | TOLD.get(task, {})).items():
        model.metadata_props.add(key=key, value=value)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A cluster that serves all of them."""
    folder = tmp_path_factory.mktemp("ultralytics")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(VARIABLE, str(folder / "models"))
        for name in NAMES:
            ran = imbrex("models", "add", export(folder, name), "--json")
            assert ran.code == 0, ran.err
        with started(folder, 1, installed=list(NAMES)) as live:
            yield live


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twice as large as the network's input."""
    path = tmp_path_factory.mktemp("pictures") / "grey.png"
    Image.new("RGB", (2 * SIDE, 2 * SIDE), (90, 120, 150)).save(path)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_predictions_of_ultralytics_exports_come_out(
    serving: Live, picture: Path, name: str
) -> None:
    (found,) = serving.ask("infer", picture, "--model", name, "--json").json()["predictions"]
    assert (found["label"], found["score"]) == ("class 1", SCORE)
    task, _ = NAMES[name]
    if task != "obb":
        assert found["box"] == [16, 48, 80, 80]
    assert_more(task, found)


def assert_more(task: str, found: dict[str, Any]) -> None:
    """What is known of the object beyond its box, in pixels of the picture."""
    if task == "segment":
        # Of 16 x 16 cells, rows 6 to 9 and, of the columns of the box, those on the left.
        assert found["mask"]["size"] == [16, 16]
        assert found["mask"]["counts"] == [98, 6, 10, 6, 10, 6, 10, 6, 104]
    elif task == "pose":
        assert found["keypoints"] == [[32, 56, 0.75], [64, 72, 0.5]]
    elif task == "obb":
        corners = np.array(found["corners"])
        assert corners.mean(axis=0) == pytest.approx((48, 64))
        # Its angle is 0.5, and a picture twice as large.
        along = 64 * np.array((np.cos(0.5), np.sin(0.5)))
        assert corners[0] - corners[3] == pytest.approx(along, abs=0.02)
    else:
        assert not {"mask", "keypoints", "corners"} & found.keys()
