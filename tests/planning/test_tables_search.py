"""The search papers' tables, as `benchmarks.tables_search` prints them."""

import pytest

from benchmarks.tables_search import (
    deepa_table_2,
    deepa_table_3,
    jia_table_3,
    soybean_section_2_2,
)
from benchmarks.training_layers import Degrees, Machine, Training
from coordinator.planning.papers.elimination import find_strategy
from models.catalogue import catalogue
from models.onnx_file.importer import load_graph


def test_jia_table_3() -> None:
    """All but VGG-16, which takes seconds to build: see the next test."""
    rows = {row["network"]: row for row in jia_table_3(("lenet5", "alexnet", "inceptionv3"))}
    assert [row["final_nodes"] for row in rows.values()] == [2, 2, 2]
    assert [rows[name]["layers"] for name in ("lenet5", "alexnet")] == [6, 11]
    assert rows["lenet5"]["exhaustive_equal"]
    assert rows["lenet5"]["all_added_up"]
    assert rows["alexnet"]["exhaustive_equal"]


def test_vgg_in_training_is_split_as_table_5_says() -> None:
    """Images for convolutions; channels for fully connected layers, fewer devices for the last.
    (The paper's {h=2, w=2} for conv5 comes from measured kernels: FLOPs alone don't tell.)
    """
    machine = Machine()
    training = Training(load_graph(catalogue.load("vgg16").proto), machine)
    strategy = find_strategy(training.cost_graph())
    assert strategy.final_nodes == 2
    chosen = [training.degrees[layer][strategy.choice[layer]] for layer in range(21)]
    assert chosen[:18] == [Degrees(n=4, c=1, h=1, w=1)] * 18
    assert [each.c for each in chosen[18:]] == [4, 4, 2]
    assert [each.devices for each in chosen[18:]] == [4, 4, 2]


@pytest.mark.parametrize("table", [deepa_table_2, deepa_table_3])
def test_deepa_table_is_exact_and_as_published(table) -> None:
    rows = table()
    assert all(row["exact"] for row in rows)
    assert all(row["selected"] == row["published_selected"] for row in rows)
    assert sum(row["selected"] for row in rows) == 1


def test_soybean_section_2_2() -> None:
    *named, k_cut = soybean_section_2_2()
    assert [row["megabytes"] for row in named] == pytest.approx([57.6, 76.8, 33.6])
    assert k_cut["no_worse"]
