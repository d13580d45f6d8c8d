"""What a device says of itself reaches those who ask without anybody in between naming it."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from protos import imbrex_pb2 as pb
from protos.errors import PeerViolation
from protos.wire.facts import EngineShare, Facts, KeptPrograms
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


def test_shares_of_engines_travel() -> None:
    texts = dict.fromkeys(("id", "name", "machine", "cpu", "runtime", "boot_id"), "a")
    numbers = dict.fromkeys(("cores", "pace", "mhz_now", "mhz_max", "memory_bytes", "threads"), 1)
    usual = texts | numbers
    facts = replace(
        Facts.of(pb.DeviceFacts(**usual)),
        engines=(EngineShare("ncnn", 3, 1.5),),
        kept=(KeptPrograms("ncnn does not take the operator Erf", 2, is_lacking=True),),
    )
    assert Facts.of(facts.message()) == facts
    for engines in ([{"name": "ncnn", "speedup": -1.0}], [{"name": f"{k}"} for k in range(100)]):
        with pytest.raises(PeerViolation):
            Facts.of(pb.DeviceFacts(**usual, engines=engines))
