"""One version back is spoken, by either side; what is further apart is refused by name."""

import asyncio
import hashlib
import json
import sys
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest

from models.tensors.boxes import Box
from protos import imbrex_pb2 as pb
from protos.errors import PeerViolation
from protos.rpc.channels import Caller
from protos.rpc.worker_client import WorkerClient
from protos.wire import versions
from protos.wire.frames import decode, encode
from protos.wire.versions import PROTOCOL, Spoken
from tests.worker.support import (
    ROOT,
    environment,
    process,
    task_item,
    tensor_item,
)
from tests.worker.tile import computes

# What version 1 puts on the wire for `golden`: a change of these bytes that an older peer would
# misread takes a new version, and this table a new row.
_FIRST = "4d6789029660a47252582fd283f3164d9efc0509b616f26ba00a992f796af0cd"
GOLDEN = {1: _FIRST, 2: _FIRST}  # 2 has an order more


@pytest.mark.parametrize(
    ("ours", "theirs", "spoken"), [(1, 1, 1), (2, 1, 1), (1, 2, 1), (3, 2, 2), (2, 7, 2)]
)
def test_the_newest_of_both_is_spoken(ours, theirs, spoken):
    assert Spoken(ours).answer(theirs, "hall", "we") == spoken


@pytest.mark.parametrize(("ours", "theirs"), [(3, 1), (1, 0), (9, 7)])
def test_peer_that_is_too_old_is_told_so(ours, theirs):
    with pytest.raises(PeerViolation, match=f"hall speaks protocol {theirs}, and this") as refused:
        Spoken(ours).answer(theirs, "hall", "this device")
    assert "newer imbrex on hall" in refused.value.cure


def test_an_answer_beyond_what_was_asked_for_is_no_answer():
    Spoken(3).require(2, "hall")
    with pytest.raises(
        PeerViolation, match="speaks protocol 4, and this device 2 and 3"
    ) as refused:
        Spoken(3).require(4, "hall")
    assert "newer imbrex on this device" in refused.value.cure
    with pytest.raises(PeerViolation, match="newer imbrex on hall"):
        Spoken(3).require(1, "hall")


def golden() -> bytes:
    """A message with everything that has a place of its own in it."""
    box = Box.of((0, 1), (0, 1), (2, 4), (0, 3))
    array = np.arange(6, dtype=np.float32).reshape(box.shape)
    program = SimpleNamespace(sha256="ab" * 32)
    items = [
        task_item(program, {"x": box}, [{"tensor": "y", "box": box, "yields": box}]),
        tensor_item("x", box, array),
        pb.Item(ping=pb.Ping(number=7, sent_s=1.5, reply_bytes=3)),
        pb.Item(release=pb.Release(requests=["r"])),
    ]
    return encode(items, [array, b"abc"])


def test_the_bytes_on_the_wire_are_those_of_this_version():
    message = golden()
    assert hashlib.sha256(message).hexdigest() == GOLDEN[PROTOCOL]
    kinds = [item.WhichOneof("kind") for item, _ in decode(message)]
    assert kinds == ["task", "tensor", "ping", "release"]


async def answers(address: str) -> None:
    async with WorkerClient(address, Caller("host")) as client:
        await client.hello("next")
        await computes(client)


async def test_a_newer_coordinator_uses_a_worker_of_the_version_before(tmp_path, monkeypatch):
    with process(tmp_path) as running:
        monkeypatch.setattr(versions, "SPOKEN", Spoken(PROTOCOL + 1))
        await answers(running.address)
        monkeypatch.setattr(versions, "SPOKEN", Spoken(PROTOCOL + 2))
        with pytest.raises(PeerViolation, match=f"speaks protocol {PROTOCOL}"):
            await answers(running.address)


@pytest.mark.parametrize("ahead", [1, 2])
async def test_a_newer_worker_serves_a_coordinator_of_the_version_before(tmp_path, ahead):
    program = textwrap.dedent(f"""
        from protos.wire import versions
        versions.SPOKEN = versions.Spoken(versions.PROTOCOL + {ahead})
        from worker.daemon import main
        main()
    """)
    command = [sys.executable, "-c", program]
    ready = tmp_path / "ready.json"
    newer = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment(tmp_path))
    async with asyncio.timeout(120):
        try:
            while not ready.exists():
                assert newer.returncode is None
                await asyncio.sleep(0.02)
            address = json.loads(ready.read_text())["address"]
            if ahead == 1:
                await answers(address)
            else:
                with pytest.raises(PeerViolation, match=r"host .*, and this worker"):
                    await answers(address)
        finally:
            newer.terminate()
            await newer.wait()
