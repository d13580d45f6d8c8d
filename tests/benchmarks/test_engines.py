"""The table of engines is that of the committed result."""

from benchmarks.engines import PAGE, page_with_table, table

RIGHT = {"onnxruntime_ms": 2.0, "ms": 1.0, "speedup": 2.0, "difference": 1e-6}


def test_the_page_has_the_committed_results_table() -> None:
    page = PAGE.read_text()
    assert page_with_table(page) == page, "run `python -m benchmarks.engines --table`"


def test_what_is_refused_is_said() -> None:
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
