"""Streams of strangers: TLS that is begun, and the data plane between workers."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import ssl
from contextlib import ExitStack, suppress

import httpx
import numpy as np
import psutil  # type: ignore[import-untyped, unused-ignore]

from benchmarks.hostile.attacks import MB, Happened, Target, attack
from models.tensors.boxes import Box
from protos.errors import LostWorker
from protos.rpc.channels import Caller
from protos.rpc.direct import PREFACE, TOKEN_BYTES
from worker.peers.data_stream import connect
from worker.peers.packets import WELCOME, greeting, packets
from worker.tasks.actions import TaskKey, TensorPiece

_SILENT, _STREAMS, _PACKETS, _FORGED = 200, 40, 50, 10
_PATIENCE_S = 2.0
_ROUNDS, _AT_ONCE = 50, 20


def _ports(target: Target) -> list[int]:
    """Where its workers listen for their neighbours."""
    told = (json.loads(path.read_text()) for path in target.folder.glob("worker-*/ready.json"))
    return [document["data_port"] for document in told]


@attack(
    "data plane",
    "requests go on, who makes no sense is hung up on",
    most_grown_bytes=32 * MB,
)
def mangled_packets_and_silence(target: Target) -> Happened:
    """Connections that say nothing, packets with a few wrong bytes, and hosts' streams whose tokens
    are forged or whose lengths are wrong, at every worker.
    """
    rng, hung_up = random.Random(1), 0
    box = Box.whole((1, 8, 2, 100))
    piece = TensorPiece(TaskKey("r", 1, 1, 0), "y", box, np.zeros(box.shape, np.float32))
    whole = b"".join(packets([piece]))
    ports = _ports(target)
    with ExitStack() as stack:
        for port in ports:
            for _ in range(_SILENT):
                with suppress(OSError):
                    stack.enter_context(socket.create_connection(("127.0.0.1", port), 1.0))
        for number in range(_STREAMS * len(ports)):
            address = ("127.0.0.1", ports[number % len(ports)])
            try:
                with socket.create_connection(address, _PATIENCE_S) as stream:
                    stream.sendall(greeting(f"evil-{number}", ""))
                    if stream.recv(1) != WELCOME:
                        hung_up += 1
                        continue
                    for _ in range(_PACKETS):
                        mangled = bytearray(whole)
                        for _ in range(3):
                            mangled[rng.randrange(60)] = rng.randrange(256)
                        stream.sendall(mangled)
                    hung_up += stream.recv(1) == b""
            except OSError:
                hung_up += 1
        forged = sum(_forged(("127.0.0.1", port), rng) for port in ports for _ in range(_FORGED))
        reached = 0
        for port in ports:
            with suppress(LostWorker):
                connect(f"127.0.0.1:{port}", "", Caller("neighbour")).close()
                reached += 1
    ok = bool(ports) and reached == len(ports)
    ok = ok and (hung_up, forged) == (_STREAMS * len(ports), _FORGED * len(ports))
    told = f"{hung_up} neighbours' and {forged} hosts' streams hung up on"
    return Happened(ok, f"{told}, {reached} of {len(ports)} still listen")


def _forged(address: tuple[str, int], rng: random.Random) -> bool:
    """Whether a host's stream that shows no token of an open call is hung up on."""
    token = rng.randbytes(TOKEN_BYTES)
    said = rng.choice([token, token[:5], b"", bytes(1 << 20)])
    size = rng.choice([len(said), 0, 1 << 31])
    try:
        with socket.create_connection(address, _PATIENCE_S) as stream:
            stream.sendall(PREFACE + size.to_bytes(4, "little") + said)
            stream.settimeout(2 * _PATIENCE_S)
            return stream.recv(1) == b""
    except ConnectionError:
        return True
    except OSError:
        return False


@attack(
    "TLS",
    "no daemon ends, and all workers stay",
    place="certified",
    most_grown_bytes=32 * MB,
)
def handshakes_at_once(target: Target) -> Happened:
    """1,000 strangers, 20 at once, begin TLS with each port that speaks it, of the coordinator and
    its workers.
    """
    listening = psutil.Process(target.pid).net_connections("tcp")
    ports = [
        connection.laddr.port for connection in listening if connection.status == psutil.CONN_LISTEN
    ]
    ports += [int(address.rpartition(":")[2]) for address in target.workers]
    begun = asyncio.run(_handshakes([*ports, *_ports(target)]))
    with httpx.Client(base_url=target.url, timeout=60) as client:
        rows = client.get("/v1/devices").json()["devices"]
    states = {row["name"]: row["state"] for row in rows if row["address"] != target.late}
    ok = begun >= 3 * _ROUNDS * _AT_ONCE and set(states.values()) == {"ready"}
    return Happened(ok, f"{begun} handshakes; {states}")


async def _handshakes(ports: list[int]) -> int:
    """How many of them came to an end on both sides."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])

    async def shaken(port: int) -> bool:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        except (OSError, TimeoutError):
            return False
        writer.transport.abort()
        return True

    found = 0
    for port in ports:
        for _ in range(_ROUNDS):
            ended = sum(await asyncio.gather(*(shaken(port) for _ in range(_AT_ONCE))))
            if not ended:
                break  # plain text, or nobody is left
            found += ended
    return found
