"""README's figures are those of the committed results."""

import json

import pytest

from benchmarks import readme
from benchmarks.lab.tables import between_marks


def test_readmes_table_is_that_of_the_results():
    page = readme.PAGE.read_text()
    assert between_marks(page, readme.table()) == page, "run `python -m benchmarks.readme`"


def test_another_result_would_be_noticed(tmp_path, monkeypatch):
    page = readme.PAGE.read_text()
    for file in (*readme.LABS, readme.HARDWARE, readme.EXPORTS):
        there = tmp_path / file
        there.parent.mkdir(exist_ok=True)
        there.write_text((readme.RESULTS / file).read_text())
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    assert between_marks(page, readme.table()) == page
    changed = json.loads((tmp_path / readme.HARDWARE).read_text())
    changed["seconds"]["pi5-gbe"]["yolov8n"]["4"] *= 2
    (tmp_path / readme.HARDWARE).write_text(json.dumps(changed))
    assert between_marks(page, readme.table()) != page


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
