"""Workers in processes of their own: start, stop, restart, and what the machine refuses."""

import asyncio
import hashlib
import os
import resource
import socket
import subprocess
import sys

import psutil
import pytest

from protos.errors import Unavailable, WorkerStopped
from protos.rpc.channels import Caller
from protos.rpc.worker_client import CHUNK_BYTES, WorkerClient
from tests.worker.support import (
    ROOT,
    conv_program,
    environment,
    install,
    message_of,
    process,
    terminate,
)


def refused(tmp_path, **changes):
    """Starts a worker that must not start; what it says."""
    ended = subprocess.run(
        [sys.executable, "-m", "worker"],
        cwd=ROOT,
        env=environment(tmp_path / "state", **changes),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_a_worker_removes_what_a_killed_one_left_half_built(tmp_path):
    half = tmp_path / "optimised" / ".building-x" / "graph.onnx"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half")
    kept = tmp_path / "optimised" / "kept.onnx"
    kept.write_bytes(b"whole")
    with process(tmp_path):
        assert not half.parent.exists()
        assert kept.exists()


async def test_a_restart_keeps_the_identity_and_what_was_optimised(tmp_path):
    program, blobs = conv_program()
    ids = []
    for _ in range(2):
        with process(tmp_path) as running:
            ids.append(running.id)
            async with WorkerClient(running.address, Caller("host")) as client:
                if len(ids) == 1:
                    await install(client, program, blobs)
                reply = await client.prepare([message_of(program)])
                assert not reply.missing
                assert reply.programs[0].error == ""
            children = psutil.Process(running.process.pid).children(recursive=True)
            assert children == []
            assert terminate(running) == 0
            assert not (tmp_path / "ready.json").exists()
    assert ids[0] == ids[1]


def parts_of(data):
    return [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]


async def test_a_full_disk_is_told_and_the_transfer_continues_later(tmp_path):
    data = os.urandom(3 * CHUNK_BYTES)
    sha256 = hashlib.sha256(data).hexdigest()

    # Stands for a full disk: writing beyond it fails with EFBIG instead of ENOSPC.
    small_files = ("prlimit", f"--fsize={2 * CHUNK_BYTES}:unlimited")
    with process(tmp_path, within=small_files) as running:
        async with WorkerClient(running.address, Caller("host")) as client:
            with pytest.raises(Unavailable, match="full"):
                await client.put(sha256, parts_of(data), len(data))
            assert await client.missing([sha256]) == {sha256: 2 * CHUNK_BYTES}
            resource.prlimit(
                running.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2
            )
            await client.put(sha256, parts_of(data[2 * CHUNK_BYTES :]), len(data), 2 * CHUNK_BYTES)
            assert await client.missing([sha256]) == {}


async def test_sigterm_with_an_open_stream_is_a_clean_end(tmp_path):
    with process(tmp_path) as running:
        async with WorkerClient(running.address, Caller("host")) as client:
            stream = client.exchange()
            await stream.write([])
            reading = asyncio.create_task(stream.read())
            await client.hello("1")
            assert await asyncio.to_thread(terminate, running) == 0
            with pytest.raises(WorkerStopped):
                await reading


def test_a_taken_port_names_its_holder(tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        said = refused(tmp_path, PORT=str(port))
    assert f"port {port} is taken by" in said
    assert f"process {os.getpid()}" in said
    assert "choose another port" in said


def test_a_second_worker_on_one_state_directory_is_refused(tmp_path):
    with process(tmp_path / "state"):
        assert "another worker uses the state directory" in refused(tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"HOST": "0.0.0.0"}, "without a certificate or a cluster secret"),
        ({"HOST": "192.0.2.1", "SECRET": "s"}, "cannot listen on 192.0.2.1"),
        ({"PACE": "2"}, "'pace' in IMBREX_WORKER_PACE"),
        ({"PASE": "2"}, "unknown worker setting 'pase'"),
        ({"STATE_DIR": "/proc/nowhere"}, "state directory /proc/nowhere cannot be used"),
        ({"MDNS": "true", "MDNS_INTERFACES": "192.0.2.1"}, "no network interface has an address"),
    ],
)
def test_unusable_settings_are_refused_with_a_cure(tmp_path, changes, says):
    assert says in refused(tmp_path, **changes)


def test_a_damaged_identity_is_named(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "id").write_text("\0\0\0\0")
    assert "does not hold a device id" in refused(tmp_path)
