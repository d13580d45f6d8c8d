"""The table of exported networks."""

from benchmarks.exports.__main__ import table

SIMULATED = [
    {"speedup": 2.5, "moved_bytes": 1_500_000, "search_cpu_s": 1.0},
    {"speedup": 3.0, "moved_bytes": 2_500_000, "search_cpu_s": 2.0},
    {"speedup": 1.5, "moved_bytes": 2_000_000, "search_cpu_s": 1.5},
]


def test_a_row_says_what_was_simulated() -> None:
    row = {"network": "a", "split_share": 0.9994, "boxes": True, "clusters": SIMULATED}
    text = table([row | {"max_rel_error": 3.2e-7}, row | {"max_rel_error": 0.0, "boxes": False}])
    assert "| a | 0.999 | 3.2e-07 | 2.50 | 3.00 | 1.50 | 1.5 | 2.0 s | boxes |" in text
    assert "| a | 0.999 | 0 | 2.50 | 3.00 | 1.50 | 1.5 | 2.0 s | raw |" in text
