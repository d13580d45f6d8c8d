"""What a device says of itself reaches those who ask without anybody in between naming it."""

from dataclasses import fields
from pathlib import Path

from protos import imbrex_pb2 as pb
from protos.wire.facts import Facts
from tests.whole.cluster import coordinator
from tests.worker.support import in_process


def test_facts_travel_by_their_names() -> None:
    assert {each.name for each in pb.DeviceFacts.DESCRIPTOR.fields} == {
        each.name for each in fields(Facts)
    }


async def test_every_fact_is_in_the_answer_about_devices(tmp_path: Path) -> None:
    async with (
        in_process(tmp_path / "worker", name="kitchen") as worker,
        coordinator(tmp_path / "host", [worker.address]) as host,
    ):
        (told,) = host.device_statuses()
        assert told.facts.keys() == {each.name for each in fields(Facts)}
        assert (told.facts["name"], told.facts["engine"]) == ("kitchen", "onnxruntime")
