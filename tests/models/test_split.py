"""Split equals whole, for random networks, grids and blocks; and the comparison can fail."""

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.catalogue.catalogue import load
from models.check.check import TOLERANCE, check, fused
from models.cut.units import divide
from models.onnx_file.importer import load_graph
from tests.examples import examples
from tests.models.networks import Sketch, networks


@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(networks(), st.integers(1, 5), st.integers(1, 4))
def test_split_equals_whole(model: onnx.ModelProto, rows: int, cols: int) -> None:
    network = divide(load_graph(model))
    report = check(model, network, (rows, cols), fused(network))
    assert report.ok, report
    assert report.comparison.max_rel_error <= TOLERANCE


def chain() -> onnx.ModelProto:
    sketch = Sketch((24, 20))
    sketch.channels["x"] = 3
    tensor = sketch.conv("x", 4, (3, 3), pads=[1, 1, 1, 1])
    return sketch.model([sketch.conv(tensor, 4, (3, 3), pads=[1, 1, 1, 1])])


def test_a_blanked_halo_row_is_noticed() -> None:
    model = chain()
    network = divide(load_graph(model))

    def blank_first_row(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        damaged = {name: array.copy() for name, array in feeds.items()}
        for array in damaged.values():
            array[:, :, 0, :] = 0
        return damaged

    assert check(model, network, (2, 1), fused(network)).ok
    report = check(model, network, (2, 1), fused(network), fault=blank_first_row)
    assert not report.ok
    assert report.comparison.max_rel_error > 100 * TOLERANCE


def test_a_value_that_is_not_finite_is_noticed() -> None:
    model = chain()
    network = divide(load_graph(model))

    def poison(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        damaged = {name: array.copy() for name, array in feeds.items()}
        next(iter(damaged.values()))[0, 0, 3, 3] = np.nan
        return damaged

    assert not check(model, network, (2, 2), fused(network), fault=poison).ok


def test_splits_into_more_tiles_than_rows_are_equal() -> None:
    sketch = Sketch((5, 4))
    sketch.channels["x"] = 2
    model = sketch.model([sketch.conv("x", 2, (3, 3), pads=[1, 1, 1, 1])])
    network = divide(load_graph(model))
    assert check(model, network, (9, 7), fused(network)).ok


@pytest.mark.slow
@pytest.mark.parametrize(("name", "grid"), [("resnet50", (3, 2)), ("yolov2", (1, 2))])
def test_catalogue_networks_split_in_one_block(name: str, grid: tuple[int, int]) -> None:
    loaded = load(name)
    network = divide(load_graph(loaded.proto, name))
    report = check(loaded.proto, network, grid, fused(network))
    assert report.ok, report
    assert report.partitioned_flop_share >= 0.95
