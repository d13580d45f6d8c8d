"""Measure `digits` on held-out sheets: `python -m training.digits.evaluate`.

Prints JSON and exits with 1 if mAP@0.5 is below the threshold. The sheets are generated from seeds
and from digit images that training never saw, so every machine measures the same pictures.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from PIL import Image

from models.digits import FOLDER, MODEL
from models.vision.anchored_grids import YoloV2
from models.vision.quality import (
    MIN_SCORE,
    EvaluatedPicture,
    exactly_right,
    matched,
    mean_average_precision,
)
from training.digits.detector import Detector
from training.digits.ink import InkPart, bank
from training.digits.sheets import SHEETS, Sheet, held_out_sheets, truth_of

MIN_MAP = 0.95


@dataclass(frozen=True, slots=True)
class Quality:
    """The measured quality; precision and recall are at the sidecar's `min_score`."""

    map_50: float
    bar: float
    per_digit: dict[str, float]
    sheets: int
    digits: int
    held_out_images: int
    min_score: float
    precision: float
    recall: float
    sheets_exactly_right: int
    model_sha256: str
    command: str


def examine(detector: Detector, sheets: Iterator[Sheet]) -> list[EvaluatedPicture]:
    """Each sheet's detections with its ground truth."""
    return [
        EvaluatedPicture(detector.find(Image.fromarray(made.pixels)), truth_of(made))
        for made in sheets
    ]


def measure(model: Path, count: int = SHEETS) -> Quality:
    """The quality of the model file on the first `count` held-out sheets."""
    detector = Detector(model, MIN_SCORE)
    pictures = examine(detector, held_out_sheets(count))
    mean, by_label = mean_average_precision(pictures)
    used = _used_min_score(model)
    shown = [_at_least(picture, used) for picture in pictures]
    hits = sum(hit for picture in shown for _, hit in matched(picture))
    digits = sum(len(picture.truth) for picture in pictures)
    return Quality(
        map_50=round(mean, 4),
        bar=MIN_MAP,
        per_digit={label: round(value, 4) for label, value in by_label.items()},
        sheets=count,
        digits=digits,
        held_out_images=len(bank(InkPart.HELD_OUT)),
        min_score=used,
        precision=round(hits / max(1, sum(len(picture.found) for picture in shown)), 4),
        recall=round(hits / digits, 4),
        sheets_exactly_right=exactly_right(shown),
        model_sha256=hashlib.sha256(model.read_bytes()).hexdigest(),
        command=f"python -m training.digits.evaluate --sheets {count}",
    )


def _used_min_score(model: Path) -> float:
    head = Detector(model).sidecar.head
    assert isinstance(head, YoloV2)
    return head.min_score


def _at_least(picture: EvaluatedPicture, min_score: float) -> EvaluatedPicture:
    return replace(picture, found=[item for item in picture.found if item.score >= min_score])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints the quality; the exit code tells whether the threshold was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sheets", type=int, default=SHEETS)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--write", action="store_true", help="also write quality.json")
    chosen = parser.parse_args(arguments)
    quality = measure(chosen.model, chosen.sheets)
    text = json.dumps(asdict(quality), indent=1) + "\n"
    sys.stdout.write(text)
    if chosen.write:
        (FOLDER / "quality.json").write_text(text, encoding="utf-8")
    return 0 if quality.map_50 >= MIN_MAP else 1


if __name__ == "__main__":
    sys.exit(main())
