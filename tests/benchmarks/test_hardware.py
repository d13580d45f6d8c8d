"""The example cluster files are those of the presets."""

import pytest

from benchmarks.hardware import CLUSTERS, EXAMPLES, example
from imbrex.described import load_cluster


@pytest.mark.parametrize("stem", EXAMPLES)
def test_example_files_are_those_of_the_presets(stem):
    file = CLUSTERS / f"{stem}.toml"
    assert file.read_text() == example(EXAMPLES[stem])
    cluster = load_cluster(file)
    assert [device.name for device in cluster.devices] == ["host", "pi-1", "pi-2", "pi-3"]
