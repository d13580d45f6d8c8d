"""Files between coordinators over their TLS: what comes whole, what is resumed, what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib

import grpc.aio
import pytest

from coordinator.several import borrowing
from coordinator.several.borrowing import LendingCoordinator, fetch
from coordinator.several.lender import Lender
from coordinator.several.listed import ListedFile
from models.catalogue.installed import SPARE_BYTES
from protos import imbrex_pb2 as pb
from protos.errors import BadConfiguration, ImbrexError, NotFound, PeerViolation, Unavailable
from protos.imbrex_pb2_grpc import LibraryServicer, add_LibraryServicer_to_server
from protos.rpc.channels import Caller
from protos.rpc.gates import CertificateGate
from protos.rpc.worker_client import CHUNK_BYTES
from protos.trust.credentials import Credentials
from protos.trust.identity import coordinator_of, keep_identity, now_utc
from tests.trust.support import KITCHEN, caller, make_trust

SECOND = "b" * 12
CONTENT = bytes(range(256)) * (5 * CHUNK_BYTES // 512)  # two and a half chunks
WANTED = ListedFile(hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


def own_id(trust):
    return coordinator_of(trust.certified.credentials.identity.names)


def another(trust, folder, other_id=SECOND):
    """The caller that another coordinator of the cluster is."""
    identity = trust.certified.authority.coordinator(now_utc(), other_id)
    credentials = Credentials(folder / f"{other_id}.pem", identity)
    keep_identity(credentials.path, identity)
    return Caller("host", credentials=credentials, coordinator=f"{other_id} attic")


@pytest.fixture
async def lent(trust, tmp_path):
    """(the lender, where it is, the file that it gives)."""
    path = tmp_path / "model.onnx"
    path.write_bytes(CONTENT)
    lender = Lender(trust.certified.credentials, "127.0.0.1", 0)
    lender.paths = {WANTED.sha256: path}
    lender.allow([own_id(trust), SECOND])
    port = await lender.start()
    yield lender, LendingCoordinator(own_id(trust), "pi-1", f"127.0.0.1:{port}"), path
    await lender.stop()


@pytest.fixture
def trust(tmp_path):
    return make_trust(tmp_path / "coordinator")


async def test_a_file_comes_whole_and_is_continued_where_it_broke_off(lent, trust, tmp_path):
    _, source, _ = lent
    part, us = tmp_path / "part", another(trust, tmp_path)
    await fetch(source, us, WANTED, part)
    assert part.read_bytes() == CONTENT
    part.write_bytes(CONTENT[: CHUNK_BYTES + 7])
    await fetch(source, us, WANTED, part)
    assert part.read_bytes() == CONTENT


async def test_an_empty_file_comes_too(lent, trust, tmp_path):
    _, source, path = lent
    path.write_bytes(b"")
    wanted = ListedFile(WANTED.sha256, 0)
    with pytest.raises(PeerViolation, match="SHA-256"):
        await fetch(source, another(trust, tmp_path), wanted, tmp_path / "part")


async def test_lender_says_which_file_it_does_not_have(lent, trust, tmp_path):
    _, source, _ = lent
    with pytest.raises(NotFound, match="does not have the file"):
        await fetch(source, another(trust, tmp_path), ListedFile("0" * 64, 5), tmp_path / "part")
    for strange in ("", "../model.onnx", "a" * 70_000):
        with pytest.raises(ImbrexError):
            await fetch(source, another(trust, tmp_path), ListedFile(strange, 5), tmp_path / "part")


async def test_a_file_that_was_changed_is_not_taken(lent, trust, tmp_path):
    _, source, path = lent
    path.write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(PeerViolation, match="another file"):
        await fetch(source, another(trust, tmp_path), WANTED, tmp_path / "part")
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(PeerViolation, match="bytes, not"):
        await fetch(source, another(trust, tmp_path), WANTED, tmp_path / "part")
    assert not (tmp_path / "part").exists()
    path.unlink()
    with pytest.raises(Unavailable, match="cannot read the file"):
        await fetch(source, another(trust, tmp_path), WANTED, tmp_path / "part")


async def test_lender_gives_files_to_coordinators_of_its_cluster_only(lent, trust, tmp_path):
    lender, source, _ = lent
    part = tmp_path / "part"
    for us, why in (
        (another(trust, tmp_path, "c" * 12), "not a member"),
        (caller(trust.certified, KITCHEN, tmp_path / "kitchen"), "not a member"),
        (Caller("host", secret="guess"), "no answer|not used"),
        (make_trust(tmp_path / "strangers").caller, "no answer|not used"),
    ):
        with pytest.raises(ImbrexError, match=why):
            await fetch(source, us, WANTED, part)
        assert not part.exists() or not part.read_bytes()
    lender.allow([own_id(trust)])
    with pytest.raises(BadConfiguration, match="not a member"):
        await fetch(source, another(trust, tmp_path), WANTED, part)


async def test_only_the_coordinator_that_is_meant_is_asked(lent, trust, tmp_path):
    _, source, _ = lent
    meant = LendingCoordinator(SECOND, "pi-2", source.address)
    with pytest.raises(BadConfiguration, match="another device answers"):
        await fetch(meant, another(trust, tmp_path), WANTED, tmp_path / "part")


async def test_absent_lender_is_named(trust, tmp_path):
    source = LendingCoordinator(own_id(trust), "pi-1", "127.0.0.1:9")
    with pytest.raises(Unavailable, match="no answer from"):
        await fetch(source, another(trust, tmp_path), WANTED, tmp_path / "part")


async def test_a_full_disk_is_not_filled_further(lent, trust, tmp_path, monkeypatch):
    _, source, _ = lent
    free = len(CONTENT) + SPARE_BYTES - 1
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr(borrowing.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(Unavailable, match="free"):
        await fetch(source, another(trust, tmp_path), WANTED, tmp_path / "part")


def test_files_that_are_on_their_way_keep_their_room(tmp_path, monkeypatch):
    size = 1 << 20
    usage = type("Usage", (), {"free": size * 3 // 2 + SPARE_BYTES})
    monkeypatch.setattr(borrowing.shutil, "disk_usage", lambda _: usage)
    with borrowing.reserved(tmp_path, tmp_path / "a", size):
        with (
            pytest.raises(Unavailable, match="free"),
            borrowing.reserved(tmp_path, tmp_path / "b", size),
        ):
            pass
        (tmp_path / "a").write_bytes(bytes(size // 2))  # which the disk has seen already
        with pytest.raises(Unavailable), borrowing.reserved(tmp_path, tmp_path / "b", size + 1):
            pass
        with borrowing.reserved(tmp_path, tmp_path / "b", size):
            pass
    with borrowing.reserved(tmp_path, tmp_path / "b", size):
        pass


# ---------------------------------------------------------------- hostile ones


def first(total=WANTED.size_bytes, offset=0):
    return pb.BlobChunk(sha256=WANTED.sha256, total_bytes=total, offset=offset)


def chunk(offset, data):
    return pb.BlobChunk(offset=offset, data=data)


def endless():
    yield first()
    while True:
        yield chunk(0, b"")


ANSWERS = {
    "nothing": [],
    "ends early": [first(), chunk(0, CONTENT[:1000])],
    "other bytes": [
        first(),
        chunk(0, b"x" * CHUNK_BYTES),
        chunk(CHUNK_BYTES, CONTENT[CHUNK_BYTES:]),
    ],
    "another file": [pb.BlobChunk(sha256="f" * 64, total_bytes=WANTED.size_bytes)],
    "without a beginning": [chunk(0, CONTENT[:10])],
    "another size": [first(total=5), chunk(0, CONTENT[:5])],
    "more than it says": [
        first(),
        *(chunk(at, CONTENT[at : at + CHUNK_BYTES]) for at in range(0, len(CONTENT), CHUNK_BYTES)),
        chunk(len(CONTENT), b"more"),
    ],
    "from the middle": [first(), chunk(500, CONTENT[500:1000])],
    "one chunk of all": [first(), chunk(0, CONTENT)],
    "nothing again and again": endless(),
    "garbage": [b"\xff\xff\xff\xff"],
}


class Hostile(LibraryServicer):
    def __init__(self, messages):
        self.messages = messages

    async def Fetch(self, request, context):  # noqa: N802
        for each in self.messages:
            yield each


@contextlib.asynccontextmanager
async def hostile(trust, messages):
    server = grpc.aio.server()
    servicer = Hostile(messages)

    def as_bytes(message):
        return message if isinstance(message, bytes) else message.SerializeToString()

    handler = grpc.unary_stream_rpc_method_handler(
        servicer.Fetch, pb.FileQuery.FromString, as_bytes
    )
    handlers = grpc.method_handlers_generic_handler("imbrex.v1.Library", {"Fetch": handler})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_secure_port("127.0.0.1:0", trust.certified.credentials.of_server())
    await server.start()
    try:
        yield LendingCoordinator(own_id(trust), "pi-1", f"127.0.0.1:{port}")
    finally:
        await server.stop(0)


@pytest.mark.parametrize("how", ANSWERS)
async def test_a_hostile_answer_never_becomes_a_file(trust, tmp_path, how):
    part, us = tmp_path / "part", another(trust, tmp_path)
    async with hostile(trust, ANSWERS[how]) as source:
        with pytest.raises(ImbrexError):
            await fetch(source, us, WANTED, part)
    assert not part.exists() or CONTENT.startswith(part.read_bytes())
    assert not part.exists() or part.stat().st_size < len(CONTENT)


async def test_silent_lender_is_given_up(trust, tmp_path, monkeypatch):
    monkeypatch.setattr(borrowing, "SILENCE_S", 0.2)

    class Silent(LibraryServicer):
        async def Fetch(self, request, context):  # noqa: N802
            await context.write(first())
            await asyncio.Event().wait()

    server = grpc.aio.server(interceptors=[CertificateGate()])
    add_LibraryServicer_to_server(Silent(), server)
    port = server.add_secure_port("127.0.0.1:0", trust.certified.credentials.of_server())
    await server.start()
    source = LendingCoordinator(own_id(trust), "pi-1", f"127.0.0.1:{port}")
    try:
        with pytest.raises(Unavailable, match="silent"):
            await fetch(source, another(trust, tmp_path), WANTED, tmp_path / "part")
    finally:
        await server.stop(0)


async def test_slow_lender_is_given_up(lent, trust, tmp_path, monkeypatch):
    monkeypatch.setattr(borrowing, "LEAST_S", 0.0)
    monkeypatch.setattr(borrowing, "SLOWEST_BYTES_PER_S", 1e12)
    _, source, _ = lent
    with pytest.raises(Unavailable, match="too slow"):
        await fetch(source, another(trust, tmp_path), WANTED, tmp_path / "part")
