"""`digits` in eight bits, as `imbrex models quantise` makes it: its mAP on the held-out sheets
beside the float network's. It is calibrated on sheets of the digits that trained it, and installed
as `digits-int8`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from benchmarks.report import command_line, emit
from models.catalogue.installed import Store
from models.digits import MODEL
from training.digits.evaluate import measure
from training.digits.ink import InkPart
from training.digits.sheets import FORMATS, SHEETS, sheet

NAME = "digits-int8"
PICTURES = 100
# Points of mAP@0.5 that eight bits may cost.
MOST_LOST = 0.005


def save_sheets(folder: Path, count: int = PICTURES) -> None:
    """Writes sheets of digits that are not held out."""
    for seed in range(count):
        made = sheet(InkPart.TRAIN, seed, FORMATS[seed % len(FORMATS)])
        Image.fromarray(made.pixels).save(folder / f"{seed}.png")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints both qualities; returns 1 if eight bits lose too much."""
    parser = command_line(__doc__)
    parser.add_argument("--sheets", type=int, default=SHEETS, help="held-out sheets")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        save_sheets(Path(folder))
        command = [sys.executable, "-m", "imbrex", "models", "quantise", "digits", "--json"]
        made = subprocess.run(
            [*command, "--images", folder, "--name", NAME], stdout=subprocess.PIPE, check=True
        )
    found = Store().find(NAME)
    assert found is not None, "it was just installed"
    exact = measure(MODEL, chosen.sheets).map_50
    quantised = measure(found.latest, chosen.sheets).map_50
    result = {**json.loads(made.stdout), "map_50": {"float": exact, "int8": quantised}}
    emit(result, chosen, f"mAP@0.5 {exact:.4f} in float, {quantised:.4f} in eight bits")
    return int(quantised < exact - MOST_LOST)


if __name__ == "__main__":
    sys.exit(main())
