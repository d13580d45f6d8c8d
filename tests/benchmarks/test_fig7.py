"""AOFL's Figure 7 and section 5.2, to the published digits."""

import json

import pytest

from benchmarks import paper
from benchmarks.fig7 import fig7

ROWS = {"2x2": (57.04, 42.3, 4.763), "2x4": (76.45, 90.7, 6.756), "4x4": (105.74, 163.8, 9.995)}


def test_figure_7_is_exact() -> None:
    result = fig7()
    assert result["unsplit_gflop"] == pytest.approx(40.09, abs=0.005)
    assert [row["grid"] for row in result["rows"]] == list(ROWS)
    for row in result["rows"]:
        gflop, overhead, megabytes = ROWS[row["grid"]]
        assert row["total_gflop"] == pytest.approx(gflop, abs=0.005)
        assert row["overhead"] == pytest.approx(overhead, abs=0.05)
        assert row["communication_mb"] == pytest.approx(megabytes, abs=0.0005)
        if row["published_overhead"] is not None:
            assert row["overhead"] == pytest.approx(row["published_overhead"], abs=0.15)
    for each in result["changes_percent"].values():
        assert each["ours"] == pytest.approx(each["published"], abs=0.3)


def test_fig7_command_prints_rows_and_refuses_other_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    paper.main(["fig7", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["rows"]) == 3
    assert "commit" in printed["provenance"]
    paper.main(["fig7"])
    assert "105.74" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        paper.main(["fig99"])
    assert caught.value.code == 2
