"""`imbrex models quantise`: a model in eight bits beside the float one, and what can't be had."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from benchmarks.digits_int8 import MOST_LOST, save_sheets
from imbrex.cli.quantising import FILE, Figures
from models.catalogue.installed import Store
from models.digits import MODEL
from models.onnx_file.builder import NetworkBuilder
from models.vision.detection import DetectedBox
from models.vision.quality import boxes_agree
from tests.cli.run_cli import imbrex, refused
from tests.serving.processes import serving
from training.digits.evaluate import measure
from training.digits.ink import InkPart
from training.digits.sheets import FORMATS, sheet


@pytest.fixture(scope="module")
def sheets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sheets")
    save_sheets(folder, 12)
    return folder


@pytest.fixture
def pictures(sheets: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    shutil.copytree(sheets, folder)
    (folder / "notes.txt").write_text("no picture")
    (folder / "broken.png").write_bytes(b"no picture either")
    return folder


def quantise(pictures: Path, *more: object) -> tuple[str, ...]:
    return tuple(map(str, ("models", "quantise", "digits", "--images", pictures, *more)))


def test_digits_in_eight_bits_are_installed_with_their_figures(store: str, pictures: Path) -> None:
    told = imbrex(*quantise(pictures, "--at-most", 5, "--json")).json()
    assert (told["name"], told["version"], told["model"]) == ("digits-int8", 1, "digits")
    assert (told["calibrated_on"], told["compared_on"]) == (10, 2)
    assert told["boxes_agree"] >= 0.9
    found = Store().find("digits-int8")
    assert found is not None
    kept = json.loads((found.latest.parent / FILE).read_text())
    assert kept == {key: value for key, value in told.items() if key in kept}
    kinds = {node.op_type for node in onnx.load(found.latest).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    assert found.latest.stat().st_size < 0.5 * MODEL.stat().st_size
    assert measure(found.latest, 20).map_50 >= measure(MODEL, 20).map_50 - MOST_LOST
    checked = imbrex("check", "digits-int8", "--json").json()
    assert checked["ok"]
    again = refused("models", "quantise", "digits-int8", "--images", pictures, "--name", "twice")
    assert "quantised already" in again.err


def test_quantising_ends_with_its_gain_and_loss(store: str, pictures: Path) -> None:
    ran = imbrex(*quantise(pictures, "--at-most", 0, "--name", "mine"))
    assert ran.code == 0, ran.err
    *_, gained, next_step = ran.out.strip().splitlines()
    assert " times as fast on this device; " in gained
    assert gained.endswith("of boxes agree")
    assert next_step == "on the cluster: imbrex bench --models digits,mine"
    figures = Figures("m", 1, 1, None, 0.5, 2.06, ())
    assert figures.told() == "2.1 times as fast on this device; 50.0% of best classes agree"


@pytest.mark.parametrize("where", [pytest.param("pictures", marks=pytest.mark.slow), "labels"])
def test_map_of_both_models_is_told_where_the_objects_are_known(
    store: str, pictures: Path, where: str
) -> None:
    folder = pictures.parent / where
    folder.mkdir(exist_ok=True)
    for seed in range(12):
        made = sheet(InkPart.TRAIN, seed, FORMATS[seed % len(FORMATS)])
        down, across = made.pixels.shape[:2]
        lines = []
        for each in made.digits:
            left, top, right, bottom = each.box
            centre = (left + right) / 2 / across, (top + bottom) / 2 / down
            size = (right - left) / across, (bottom - top) / down
            lines.append(" ".join(map(str, (each.label, *centre, *size))))
        (folder / f"{seed}.txt").write_text("\n".join(lines) + "\n")
    ran = imbrex(*quantise(pictures, "--at-most", 0, "--json"))
    told = ran.json()["map_50"]
    assert told["float"] >= 0.95
    assert told["int8"] >= told["float"] - 10 * MOST_LOST
    # Boxes that are somewhere else are noticed.
    for file in folder.glob("*.txt"):
        if file.stem.isdecimal():
            file.write_text("0 0.01 0.01 0.02 0.02\n")
    assert imbrex(*quantise(pictures, "--at-most", 0, "--json")).json()["map_50"]["float"] < 0.1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("0 0.5 0.5 0.1\n", "line 1 does not have 5 numbers"),
        ("0 0.5 0.5 0.1 0.1\na dog\n", "line 2"),
        ("10 0.5 0.5 0.1 0.1\n", "class 10"),
        ("-1 0.5 0.5 0.1 0.1\n", "class -1"),
        ("0 nan 0.5 0.1 0.1\n", "within 0 and 1"),
        ("0 0.5 0.5 inf 0.1\n", "within 0 and 1"),
        ("nan 0.5 0.5 0.1 0.1\n", "class nan"),
        ("0 0.5 0.5 0.1 0.1\n" * 60_000, "bytes"),
        (b"\xff\xfe0", "cannot be read"),
    ],
)
def test_objects_that_are_none_are_refused_by_file_and_line(
    store: str, pictures: Path, text: str | bytes, named: str
) -> None:
    content = text if isinstance(text, bytes) else text.encode()
    (pictures / "3.txt").write_bytes(content)
    ran = refused(*quantise(pictures, "--at-most", 0))
    assert "3.txt" in ran.err
    assert named in " ".join(ran.err.split())
    assert not Store().installed()


def test_the_gain_on_the_cluster_is_told(store: str, pictures: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "service", []) as service:
        ran = imbrex(*quantise(pictures, "--at-most", 0, "--url", service.url))
    assert ran.code == 0, ran.err
    told = ran.out.strip().splitlines()[-1]
    assert re.search(
        r" times as fast on this device, \d+\.\d on the cluster; [\d.]+% of boxes", told
    )


@pytest.mark.parametrize("content", [(), ("one.png",), ("a.png", "b.png", "c.png")])
def test_a_folder_without_enough_pictures_is_refused(
    store: str, tmp_path: Path, content: tuple[str, ...]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in content:
        (folder / name).write_bytes(b"text")
    if content[:1] == ("one.png",):
        Image.new("RGB", (40, 30)).save(folder / "one.png")
    ran = refused(*quantise(folder))
    assert "pictures that can be used" in ran.err
    assert not Store().installed()


def test_a_folder_that_is_none_is_refused(store: str, tmp_path: Path) -> None:
    assert "cannot be read" in refused(*quantise(tmp_path / "nowhere")).err


def test_a_name_that_cannot_be_is_refused_before_the_work(store: str, tmp_path: Path) -> None:
    told = refused("models", "quantise", "digits", "--images", tmp_path, "--name", "a/b")
    assert "cannot be a model's name" in told.err


def test_models_that_take_no_pictures_and_names_that_are_taken_are_refused(
    store: str, pictures: Path, tmp_path: Path
) -> None:
    assert "built-in" in refused(*quantise(pictures, "--name", "resnet50")).err
    net = NetworkBuilder("plain", seed=1)
    x = net.input("x", (1, 3, 8, 8)).relu()
    path = tmp_path / "plain.onnx"
    onnx.save(net.model(x.global_average_pool("mean").flatten("flat")), path)
    ran = refused("models", "quantise", path, "--images", pictures)
    assert "does not take pictures" in ran.err
    light = ("models", "add", path, "--name", "light", "--labels", "a,b,c", "--pixels", "unit")
    assert imbrex(*light).code == 0
    ran = refused("models", "quantise", "light", "--images", pictures)
    assert "no convolutions" in ran.err


def test_a_full_disk_is_told_and_leaves_nothing(pictures: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)]
    if os.geteuid() or subprocess.run(mounted, check=False, capture_output=True).returncode:
        pytest.skip("needs root, to mount a small disk")
    try:
        for variable in ("IMBREX_MODELS", "TMPDIR"):
            ran = imbrex(*quantise(pictures, "--at-most", 0), env={variable: str(small)})
            assert ran.code == 1, ran
            assert "cure:" in ran.err, ran.err
            assert not list(small.glob("*/*"))
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_boxes_agree_when_label_and_place_do() -> None:
    def box(label: str, x: float) -> DetectedBox:
        return DetectedBox(label, 0, 0.9, (x, 0.0, x + 10.0, 10.0))

    assert boxes_agree([]) == 1.0
    assert boxes_agree([([box("a", 0)], [box("a", 2)])]) == 1.0
    assert boxes_agree([([box("a", 0)], [box("a", 6)])]) == 0.0
    assert boxes_agree([([box("a", 0)], [box("b", 0)])]) == 0.0
    both = [box("a", 0), box("a", 50)], [box("a", 50)]
    assert np.isclose(boxes_agree([both]), 2 / 3)
