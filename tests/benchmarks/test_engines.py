"""The table of engines."""

from benchmarks.engines import table

RIGHT = {"onnxruntime_ms": 2.0, "ms": 1.0, "speedup": 2.0, "difference": 1e-6}


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
