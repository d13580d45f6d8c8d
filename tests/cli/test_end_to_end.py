"""End-to-end exports (YOLOv10, YOLO26): rows of finished boxes, from the file to what was found."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from models.catalogue.installed import Store
from models.onnx_file.builder import NetworkBuilder, square
from models.onnx_file.model_file import read_model
from models.run.reference import WholeModel
from models.vision.box_lists import EndToEnd
from models.vision.detection import best
from models.vision.predictions import predictions
from models.vision.preprocess import place
from models.vision.sidecar import Sidecar, load, sidecar_path
from protos.errors import NotFiniteAnswer
from tests.cli.run_cli import imbrex, refused

SIDE = 64
# Two boxes that overlap, which only the graph may call one; the rest is of no score, as padding is.
ROWS = np.zeros((300, 6), np.float32)
ROWS[0] = (8, 16, 40, 56, 0.9, 0)
ROWS[1] = (9, 16, 40, 56, 0.6, 0)


def export(path: Path, rows: np.ndarray, told: dict[str, str]) -> Path:
    """A network whose answer is always `rows`, with this metadata."""
    net = NetworkBuilder("boxes", seed=1)
    x = net.input("images", (1, 3, SIDE, SIDE)).conv("conv", 1, square(3)).relu()
    mean = x.global_average_pool("mean").flatten("flat")
    none = net.node(
        "Mul", "none", [mean.name, net.constant("zero", np.zeros((1, 1), np.float32))], (1, 1)
    )
    found = net.constant("rows", rows[None])
    model = net.model(net.node("Add", "output0", [none.name, found], (1, *rows.shape)))
    for key, value in told.items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, path)
    return path


def told(classes: int, end2end: str | None) -> dict[str, str]:
    """What Ultralytics writes into a file."""
    names = str({k: f"class {k}" for k in range(classes)})
    written = {"names": names, "task": "detect", "stride": "32", "imgsz": f"[{SIDE}, {SIDE}]"}
    return written if end2end is None else {**written, "end2end": end2end}


def added(store: str, file: Path) -> tuple[Path, Sidecar]:
    imbrex("models", "add", file, "--json")
    found = Store(Path(store)).find(file.stem)
    assert found is not None
    return found.latest, load(sidecar_path(found.latest))


@pytest.mark.parametrize(
    ("classes", "index", "end2end"), [(1, 0, "True"), (80, 17, "True"), (80, 17, None)]
)
def test_boxes_are_read_as_they_are(
    store: str, tmp_path: Path, classes: int, index: int, end2end: str | None
) -> None:
    rows = ROWS.copy()
    rows[:2, 5] = index
    path, sidecar = added(store, export(tmp_path / "boxes.onnx", rows, told(classes, end2end)))
    assert sidecar.head == EndToEnd("end2end", 0.25)
    whole = WholeModel(read_model(path).complete(), threads=1)
    answer = whole.run({"images": np.zeros((1, 3, SIDE, SIDE), np.float32)})
    placement = place(2 * SIDE, 2 * SIDE, sidecar.input)
    found = [each.as_json() for each in predictions(sidecar, answer, placement)]
    assert [each["label"] for each in found] == [f"class {index}"] * 2
    assert [each["score"] for each in found] == pytest.approx([0.9, 0.6])
    assert found[0]["box"] == pytest.approx([16, 32, 80, 112])


def test_rows_that_may_be_yolov5s_are_refused_with_the_line_that_decides(
    store: str, tmp_path: Path
) -> None:
    file = export(tmp_path / "boxes.onnx", ROWS, told(1, None))
    words = refused("models", "add", file).err
    assert '"type": "end2end"' in words.replace("\n", "")
    assert "yolov5" in words


def test_rows_of_every_cell_are_yolov5s(store: str, tmp_path: Path) -> None:
    cells = 3 * (8 * 8 + 4 * 4 + 2 * 2)
    file = export(tmp_path / "older.onnx", np.zeros((cells, 6), np.float32), told(1, None))
    _, sidecar = added(store, file)
    assert getattr(sidecar.head, "type", None) == "yolov5"


@pytest.mark.parametrize("wide", [7, 57])
def test_rows_with_more_than_a_box_are_refused(store: str, tmp_path: Path, wide: int) -> None:
    """Angles or key points: there is no head for them, and they are not scores of classes."""
    file = export(
        tmp_path / "poses.onnx", np.zeros((300, wide), np.float32), told(wide - 5, "True")
    )
    assert "the form of the boxes" in refused("models", "add", file).err


def test_a_class_that_has_no_label_is_nothing() -> None:
    rows = ROWS.copy()
    rows[0, 5] = 7
    found = EndToEnd("end2end", 0.25).candidates({"output0": rows[:1][None]}, 1, (SIDE, SIDE))
    assert len(best(found, 0.25).scores) == 0


@pytest.mark.parametrize("row", [(0, 0, 8, 8, np.nan, 0), (0, 0, 8, 8, 0.5, np.nan)])
def test_a_score_or_class_that_is_no_number_is_said(row: tuple[float, ...]) -> None:
    outputs = {"output0": np.array([[row]], np.float32)}
    found = EndToEnd("end2end", 0.25).candidates(outputs, 1, (SIDE, SIDE))
    with pytest.raises(NotFiniteAnswer):
        best(found, 0.25)
