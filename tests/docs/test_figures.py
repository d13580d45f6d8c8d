"""README's figures are those of the committed results: tests/benchmarks/test_tables.py compares the
page with them.
"""

import json

import pytest

from benchmarks import readme


@pytest.mark.parametrize(
    ("model", "lab"), [("yolov8n-seg", readme.LABS[0]), ("resnet50", readme.LABS[1])]
)
def test_times_of_the_lab_are_those_of_the_devices(model, lab):
    found = readme.lab(model)
    document = json.loads((readme.RESULTS / lab).read_text())
    slow = document["models"][model]
    assert document["scale"] < 1
    assert found.alone_s == slow["baseline"]["latency_s"] * document["scale"]
    assert abs(found.gain - slow["strategies"]["auto"]["speedup"]) < 1e-3


def test_every_row_says_how_it_was_found():
    rows = [line for line in readme.table().splitlines() if line.startswith("|")][2:]
    assert len(rows) == 9
    assert all(row.split("|")[-2].strip().startswith(("lab", "simulated")) for row in rows)
