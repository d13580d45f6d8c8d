"""Small requests that claim to be large ones (H2, H8)."""

from __future__ import annotations

import io
import struct
import time
import zipfile

import httpx

from benchmarks.hostile.attacks import Happened, Target, attack

SOON_S = 2.0
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
    """An archive whose member claims a header of this length, and delivers what it claims."""
    file = io.BytesIO()
    claimed = int.from_bytes(length, "little")
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("image.npy", "w", force_zip64=True) as member,
    ):
        member.write(b"\x93NUMPY" + bytes([version, 0]) + length)
        for _ in range(claimed // 1_000_000):
            member.write(b" " * 1_000_000)
        member.write(b" " * (claimed % 1_000_000))
    return file.getvalue()


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
