"""Links are remembered from one start to the next."""

import json

import pytest

from coordinator.costs.cluster import Link
from coordinator.costs.links import prior_link
from coordinator.devices.link_file import LINKS_FILE, load_links, save_links
from coordinator.devices.measured import DeviceMeasurements
from protos.wire.facts import DeviceId
from tests.devices.support import worker_process
from tests.waiting import until
from tests.whole.cluster import coordinator

A, B = DeviceId("a1"), DeviceId("b2")


def test_saved_links_are_loaded_again(tmp_path) -> None:
    links = {A: Link(1.2e7, 0.001, 0.002), B: Link(1e9)}
    save_links(tmp_path, links)
    assert load_links(tmp_path) == links
    measured = DeviceMeasurements(before=links)
    assert measured.link(A).bytes_per_s == 1.2e7
    assert measured.link(DeviceId("new")).bytes_per_s == prior_link(0).bytes_per_s
    assert measured.links == links


@pytest.mark.parametrize(
    "damage",
    ["{", "[]", '{"a1": {"bytes_per_s": "fast"}}', '{"a1": {"bytes_per_s": -1.0}}', '{"a1": {}}'],
)
def test_damage_is_as_good_as_nothing(tmp_path, damage) -> None:
    (tmp_path / LINKS_FILE).write_text(damage)
    assert load_links(tmp_path) == {}


def test_links_are_not_kept_where_they_cannot_be_written(tmp_path) -> None:
    save_links(tmp_path / "gone", {A: Link(1e9)})
    assert load_links(tmp_path) == {}


async def test_probes_are_kept(tmp_path) -> None:
    async with (
        worker_process(tmp_path / "worker") as worker,
        coordinator(tmp_path / "host", [worker.address]),
    ):
        await until(lambda: load_links(tmp_path / "host"))
    (kept,) = load_links(tmp_path / "host").values()
    assert kept.bytes_per_s > 1e6
    assert set(json.loads((tmp_path / "host" / LINKS_FILE).read_text())) == {worker.id}
