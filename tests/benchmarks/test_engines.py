"""The table of engines."""

import json

from benchmarks import engine_blocks, engines
from benchmarks.engines import table
from models.digits import MODEL
from worker.engines.registry import DEFAULT

RIGHT = {"onnxruntime_ms": 2.0, "ms": 1.0, "speedup": 2.0, "difference": 1e-6}


def test_table_of_engines_says_which_are_refused() -> None:
    rows = [
        {"network": "a", "best": "openvino", "speedup": 2.0, "engines": {"openvino": RIGHT}},
        {
            "network": "b.script",
            "best": "onnxruntime",
            "speedup": 1.0,
            "engines": {"openvino": RIGHT | {"difference": 0.01}},
        },
        {
            "network": "c",
            "best": "onnxruntime",
            "speedup": 1.0,
            "engines": {"openvino": {"refused": "no such operator"}},
        },
    ]
    told = table(rows).strip().splitlines()[2:]
    assert told == [
        "| `a` | 2 ms | 1 ms | 1e-06 | 2.00 |",
        "| `b` | 2 ms | 1 ms | 1e-02, refused | 1 |",
        "| `c` |  | refused |  | 1 |",
    ]


def test_a_network_is_computed_in_blocks_by_the_best_of_the_installed_engines(tmp_path, capsys):
    written = tmp_path / "engines.json"
    assert engines.main(["--as-on-arm", "--json", "-o", str(written), str(MODEL)]) in (0, 1)
    ((name, row),) = json.loads(written.read_text())["networks"].items()
    assert (name, sum(row["programs"].values()) > 1) == (MODEL.stem, True)
    assert {*row["programs"]} <= {DEFAULT, *engine_blocks.ENGINES}
    assert row["difference"] <= 1e-5
    assert row["ratio"] == row["onnxruntime_s"] / row["best_s"]
    assert f"| `{name}` |" in engine_blocks.markdown({name: row})
