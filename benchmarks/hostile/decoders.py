"""Small requests that claim to be large ones (H2, H8)."""

from __future__ import annotations

import struct
import time
import zipfile
import zlib

import httpx

from benchmarks.hostile.attacks import Happened, Target, attack

SOON_S = 2.0
# Of a zip file: the version that is needed, no flags, deflated, 1 January 1980.
_DEFLATED = struct.pack("<5H", 20, 0, zipfile.ZIP_DEFLATED, 0, 33)
CLAIMED_BYTES = 1_500_000_000
LARGE_BYTES = 60_000_000
TENSORS = "/v1/models/lenet5/infer"
_REFUSED = "refused with 4xx within 2 s of CPU, at most three largest bodies in memory"


def _sent(target: Target, path: str, body: bytes, kind: str) -> Happened:
    headers = {"Content-Type": kind}
    with httpx.Client(base_url=target.url, timeout=60) as client:
        started_s = time.monotonic()
        answer = client.post(path, content=body, headers=headers)
        seconds = time.monotonic() - started_s
    refused = 400 <= answer.status_code < 500
    # The wire and other processes of this machine take their time, too.
    ok = refused and seconds < 2 * SOON_S
    return Happened(ok, f"{answer.status_code} after {seconds:.2f} s", {"seconds": seconds})


def _npz(version: int, length: bytes) -> bytes:
    """An archive whose member claims a header of this length, and delivers what it claims. A
    million spaces are packed once: after a full flush their packed form can be repeated.
    """
    times, rest = divmod(int.from_bytes(length, "little"), 1_000_000)
    start, spaces, end = b"\x93NUMPY" + bytes([version, 0]) + length, b" " * 1_000_000, b" " * rest
    packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    packed += (packer.compress(spaces) + packer.flush(zlib.Z_FULL_FLUSH)) * times
    packed += packer.compress(end) + packer.flush()
    check = zlib.crc32(start)
    for _ in range(times):
        check = zlib.crc32(spaces, check)
    name, size = b"image.npy", len(start) + times * len(spaces) + rest
    sizes = struct.pack("<3I2H", zlib.crc32(end, check), len(packed), size, len(name), 0)
    member = b"PK\x03\x04" + _DEFLATED + sizes + name + packed
    entry = b"PK\x01\x02\x14\x00" + _DEFLATED + sizes + bytes(14) + name
    return (
        member
        + entry
        + b"PK\x05\x06"
        + struct.pack("<4H2IH", 0, 0, 1, 1, len(entry), len(member), 0)
    )


@attack("H2", _REFUSED)
def npy_version_1(target: Target) -> Happened:
    """The longest header that version 1 of .npy can have."""
    return _sent(target, TENSORS, _npz(1, struct.pack("<H", 65535)), "application/x-npz")


@attack("H2", _REFUSED, quick=True)
def npy_version_2(target: Target) -> Happened:
    """A header of 1.5 GB, packed into some megabytes."""
    return _sent(target, TENSORS, _npz(2, struct.pack("<I", CLAIMED_BYTES)), "application/x-npz")


@attack("H2", _REFUSED)
def npy_version_3(target: Target) -> Happened:
    """The same in version 3."""
    return _sent(target, TENSORS, _npz(3, struct.pack("<I", CLAIMED_BYTES)), "application/x-npz")


@attack("H8", _REFUSED, quick=True)
def json_of_lists(target: Target) -> Happened:
    """60 MB of `[],`."""
    body = b"[" + b"[]," * (LARGE_BYTES // 3) + b"0]"
    return _sent(target, "/v2/models/lenet5/infer", body, "application/json")


@attack("H8", _REFUSED)
def zip_of_entries(target: Target) -> Happened:
    """An archive with 1.3 million entries in its directory."""
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", *[0] * 16)
    directory = entry * 1_300_000
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(directory), 0, 0)
    return _sent(target, TENSORS, directory + end, "application/x-npz")
