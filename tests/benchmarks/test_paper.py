"""`python -m benchmarks.paper`: what it prints, writes and draws."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import paper
from benchmarks.compare import percent, table
from benchmarks.curves import speedups_svg
from benchmarks.fig10_13 import fig13
from benchmarks.meanings import meanings, meanings_text
from benchmarks.testbed import Meaning, Setting, calibrated, like, unlike


def test_several_tables_are_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    paper.main(["deepa", "soybean", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert all(row["exact"] for row in printed["deepa"]["table_3"])
    assert printed["soybean"]["rows"][0]["megabytes"] == pytest.approx(57.6)
    assert printed["provenance"]["commit"]


def test_a_file_takes_the_json_beside_the_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paper.main(["table2", "-o", str(tmp_path / "table2.json")])
    printed = capsys.readouterr().out
    assert "4 cores" in printed
    assert "2-2: AOFL uses all eight" in printed
    assert json.loads((tmp_path / "table2.json").read_text())["provenance"]["commit"]


def test_wrong_names_and_pictures_of_tables(tmp_path: Path) -> None:
    for arguments in (["fig8"], ["deepa", "-o", str(tmp_path / "deepa.svg")]):
        with pytest.raises(SystemExit) as caught:
            paper.main(arguments)
        assert caught.value.code == 2


def test_every_figure_has_a_text() -> None:
    result = fig13((1, 2))
    text = paper.TABLES["fig13"][1](result)
    assert "resnet50" in text
    assert "within 15 %" in text
    adopted = meanings([Meaning()])
    assert adopted["rows"][0]["cost_within"] == 11
    assert "adopted" in meanings_text(adopted)


def test_curves_are_drawn() -> None:
    root = ElementTree.fromstring(speedups_svg([fig13((1, 2))]))
    kinds = [element.tag.partition("}")[2] for element in root.iter()]
    # Two calibrations of two clocks, both measures each, and five lines of a grid per panel;
    # 2, 4 and 8 devices are published at one clock.
    assert kinds.count("polyline") == 2 * (2 * 2 + 5)
    assert kinds.count("circle") == 2 * 3


def test_calibrated_settings_follow_the_testbed() -> None:
    base = calibrated("b")
    assert [device.host for device in base.devices] == [True] + 7 * [False]
    assert base.devices[1].link.endpoint_byte_s == pytest.approx(240e-9)
    assert like(Setting("b", 8)) == base
    half = like(Setting("b", 3, 0.5, 25.1))
    assert len(half.devices) == 3
    assert half.devices[0].costs == half.devices[1].costs
    assert half.devices[1].speed == pytest.approx(base.devices[1].speed / 2)
    assert half.devices[1].link.endpoint_byte_s == pytest.approx(480e-9)
    assert half.devices[1].costs.weight_1x1 == 0
    alike = like(Setting("b", 3, 0.5, meaning=Meaning(slow_bytes=False, weights_1x1=True)))
    assert alike.devices[1].link.endpoint_byte_s == pytest.approx(240e-9)
    assert alike.devices[1].costs.weight_1x1 == 1
    assert half.devices[1].link.bytes_per_s == pytest.approx(25.1e6 / 8)
    alone = like(Setting("b", 2, meaning=Meaning(host_computes=False, ends=1)))
    assert not any(device.host for device in alone.devices)
    assert alone.devices[0].link.endpoint_byte_s == pytest.approx(120e-9)
    four = unlike("a", (1.0, 0.4), {0: 4})
    assert four.devices[0].speed == pytest.approx(10 * four.devices[1].speed)


def test_tables_align_numbers_and_texts() -> None:
    assert percent(1.1, 1.0) == pytest.approx(10)
    assert percent(1.1, None) is None
    text = table([{"a": 1.23456, "b": "x"}, {"a": None, "b": True}], {"a": "A", "b": "B"})
    assert text.splitlines() == ["    A  B", "1.235  x", "       yes"]


@pytest.mark.slow
def test_all_paper_figures_are_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    paper.main(["--json"])
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {*paper.ALL, "provenance"}
    assert all(row["final_nodes"] == 2 for row in printed["jia"]["rows"])
