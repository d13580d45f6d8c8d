"""The committed example sheets: pictures of held-out digits, and what is really on them."""

import json
from dataclasses import dataclass
from pathlib import Path

from models.digits import EXAMPLES
from models.vision.quality import GroundTruth

TRUTH = EXAMPLES / "truth.json"


@dataclass(frozen=True, slots=True)
class Example:
    """One sheet: its picture file and the digits that are really on it."""

    path: Path
    truth: tuple[GroundTruth, ...]


def examples() -> tuple[Example, ...]:
    """All examples; the model reads the first one without a mistake."""
    document = json.loads(TRUTH.read_text(encoding="utf-8"))
    return tuple(
        Example(
            EXAMPLES / entry["file"],
            tuple(GroundTruth(digit["label"], tuple(digit["box"])) for digit in entry["digits"]),
        )
        for entry in document["sheets"]
    )
