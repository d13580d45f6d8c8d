"""Write the example sheets and their truth: `python -m training.digits.compose_examples`."""

from __future__ import annotations

import json

from PIL import Image

from models.digits import EXAMPLES
from models.digits.examples import TRUTH
from training.digits.ink import InkPart
from training.digits.sheets import Format, Sheet, sheet

FORM = Format(width=480, height=360, fewest=4, most=7)
# Beyond the seeds of the evaluation, chosen for their variety of papers.
SEEDS = (1006, 1013, 1018, 1028)


def main() -> None:
    """Compose the sheets from held-out digits only."""
    EXAMPLES.mkdir(exist_ok=True)
    entries = []
    for number, seed in enumerate(SEEDS, start=1):
        made, file = sheet(InkPart.HELD_OUT, seed, FORM), f"sheet-{number}.png"
        Image.fromarray(made.pixels).save(EXAMPLES / file, optimize=True)
        entries.append({"file": file, "seed": seed, "digits": _digits(made)})
    TRUTH.write_text(json.dumps({"sheets": entries}, indent=1) + "\n", encoding="utf-8")


def _digits(made: Sheet) -> list[dict[str, object]]:
    return [{"label": str(digit.label), "box": list(digit.box)} for digit in made.digits]


if __name__ == "__main__":
    main()
