from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFont

from models.vision import fonts
from models.vision.classes import ClassProbability
from models.vision.detection import DetectedBox
from models.vision.drawing import annotated, colour_of

BOX = DetectedBox("7", 7, 0.93, (60.0, 80.0, 120.0, 160.0))


@pytest.mark.parametrize("background", ["black", "white", "grey", colour_of(7)])
def test_a_box_stands_out_on_any_background(background: str | tuple[int, int, int]) -> None:
    image = Image.new("RGB", (320, 240), background)
    drawn = np.asarray(annotated(image, [BOX])).astype(int)
    paper = np.array(image.getpixel((0, 0)))
    across = np.abs(drawn[120, 50:70] - paper).sum(axis=-1)  # the left edge
    down = np.abs(drawn[150:170, 90] - paper).sum(axis=-1)  # the lower edge
    assert across.max() > 250
    assert down.max() > 250
    assert not np.abs(drawn[100:140, 80:110] - paper).any()  # what was found stays visible


def test_the_sent_picture_is_not_drawn_on() -> None:
    image = Image.new("RGB", (200, 200), "white")
    annotated(image, [BOX])
    assert image.getextrema() == ((255, 255),) * 3


@pytest.mark.parametrize(
    "box", [(0, 0, 1, 1), (0, 0, 200, 150), (199, 149, 200, 150), (-5, -5, 300, 300)]
)
@pytest.mark.parametrize("size", [(200, 150), (4000, 30), (16, 12)])
def test_boxes_at_the_borders_and_tiny_pictures(
    box: tuple[float, float, float, float], size: tuple[int, int]
) -> None:
    drawn = annotated(Image.new("L", size), [DetectedBox("a long label \u00e9\u00df", 3, 0.5, box)])
    assert (drawn.size, drawn.mode) == (size, "RGB")
    assert np.asarray(drawn).any()


def test_classes_are_listed_from_the_upper_left() -> None:
    names = [ClassProbability(f"class {n}", n, 0.5) for n in range(3)]
    drawn = np.asarray(annotated(Image.new("RGB", (300, 200)), names))
    plates = [np.argwhere((drawn == colour_of(n)).all(axis=-1)) for n in range(3)]
    tops = [int(plate[:, 0].min()) for plate in plates]
    assert tops == sorted(set(tops))
    assert all(plate[:, 1].min() < 5 for plate in plates)
    # Black text on the plate.
    assert all(len(plate) < np.ptp(plate[:, 0]) * np.ptp(plate[:, 1]) for plate in plates)


def test_colours_of_neighbouring_classes_differ() -> None:
    colours = np.array([colour_of(n) for n in range(10)]).astype(int)
    apart = np.abs(colours[:, None] - colours[None]).sum(axis=-1)
    assert apart[~np.eye(10, dtype=bool)].min() > 40


def plate(label: str, index: int = 7) -> bytes:
    drawn = annotated(Image.new("RGB", (400, 100), "white"), [ClassProbability(label, index, 0.5)])
    return drawn.tobytes()


def test_labels_are_drawn_in_their_own_script() -> None:
    """Latin, Greek and Cyrillic with the font that comes with imbrex; no two look the same."""
    labels = ["Bär", "Bar", "Bßr", "Bœr", "Łuk", "Άλφα", "кот", "кит", "cat", '"x"', "Bä\nr"]
    assert len({plate(each) for each in labels}) == len(labels)
    assert plate("Bä\nr\t") == plate("Bä r")


def test_other_scripts_are_drawn_if_the_system_has_a_font_and_are_numbers_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fonts, "FOLDERS", (tmp_path,))
    fonts.of_the_system.cache_clear()
    try:
        for label in ("猫", "cat 🐈", "Bär 犬"):
            assert plate(label, 12) == plate("#12", 12)
        (tmp_path / "noto").mkdir()
        shutil.copy(fonts.OWN, tmp_path / "noto" / "NotoSansCJK-Regular.ttf")
        (tmp_path / "broken.otf").write_bytes(b"no font")
        monkeypatch.setattr(fonts, "OWN", Path(ImageFont.__file__))
        fonts.of_the_system.cache_clear()
        assert fonts.font_for("кот", 20) is not None
        assert fonts.font_for("猫", 20) is None
    finally:
        fonts.of_the_system.cache_clear()
