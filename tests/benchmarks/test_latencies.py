"""What a change makes of plans is found: simulated seconds side by side."""

from benchmarks.latencies import clusters, measure, worse


def test_plans_are_compared_row_by_row() -> None:
    where = {name: each for name, each in clusters(3).items() if name in ("pi4-gbe", "unlike")}
    rows = list(measure(["lenet5"], ["single", "lw"], where))
    assert len(rows) == 4
    assert all(row["latency_s"] > 0 for row in rows)
    split = {row["cluster"]: row["latency_s"] for row in rows if row["strategy"] == "lw"}
    assert split["unlike"] > split["pi4-gbe"], "equal tiles, and one device is half as fast"
    assert worse(rows, rows) == []


def test_slower_or_missing_plan_is_worse() -> None:
    row = {"model": "m", "cluster": "c", "strategy": "s", "latency_s": 1.0}
    assert worse([row | {"latency_s": 1.009}], [row]) == []
    assert worse([row | {"latency_s": 1.02}], [row]) == [(1.02, "m on c by s")]
    assert worse([row | {"latency_s": None}], [row]) == [(float("inf"), "m on c by s")]
    assert worse([row], []) == []
