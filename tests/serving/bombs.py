"""Small requests that claim to be large ones, by decoder."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from protos import inference_pb2 as pb

LARGE = 60_000_000
JSON_LARGE = 8 << 20
IMAGE, TENSORS = "/v1/models/digits/infer", "/v1/models/stored/infer"
OIP = "/v2/models/stored/infer"


@dataclass(frozen=True)
class Bomb:
    """A request over HTTP; `body` is made when it is sent."""

    name: str
    path: str
    body: Callable[[], bytes]
    headers: tuple[tuple[str, str], ...] = ()


def npz(member: bytes, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression, compresslevel=9) as archive:
        archive.writestr("image.npy", member)
    return file.getvalue()


def long_header(version: int) -> bytes:
    """Claims 1.5 GB of header (what its version can, at most), and delivers it."""
    if version == 1:
        return npz(b"\x93NUMPY\x01\x00" + struct.pack("<H", 65535) + bytes(65535))
    file = io.BytesIO()
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("image.npy", "w", force_zip64=True) as member,
    ):
        member.write(b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<I", 1_500_000_000))
        for _ in range(1500):
            member.write(b" " * 1_000_000)
    return file.getvalue()


def endless_array() -> bytes:
    """The right header, and a gigabyte behind it."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f4", "fortran_order": False, "shape": (1, 3, 16, 16)}
    )
    return npz(file.getvalue() + bytes(300_000_000))


def huge_array() -> bytes:
    """A header that claims a terabyte."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f4", "fortran_order": True, "shape": (1 << 20, 1 << 18)}
    )
    return npz(file.getvalue() + bytes(100))


def many_entries(count: int = 1_300_000) -> bytes:
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", *[0] * 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    directory = entry * count
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(directory), 0, 0)
    return directory + end


def many_entries_64(count: int = 1_300_000) -> bytes:
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", *[0] * 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    directory = entry * count
    size = len(directory)
    record = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, 0)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, size, 1)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return directory + record + locator + end


def lzma_dictionary() -> bytes:
    """A member whose decoder is told to have a dictionary of 4 GB."""
    data = bytearray(npz(bytes(100_000), zipfile.ZIP_LZMA))
    at = data.find(b"\x5d", 30)
    data[at + 1 : at + 5] = b"\xff\xff\xff\xff"
    return bytes(data)


def form(*parts: bytes) -> bytes:
    return b"".join(b"--x\r\n" + part for part in parts) + b"--x--\r\n"


def picture(mode: str, kind: str, height: int = 4000, **more: object) -> bytes:
    """As many pixels as are taken of this kind."""
    file = io.BytesIO()
    Image.new(mode, (5000, height)).save(file, kind, **more)
    return file.getvalue()


_HEAD = b'Content-Disposition: form-data; name="image"; filename="i"\r\n'
_FORM = (("Content-Type", "multipart/form-data; boundary=x"),)
_NPZ = (("Content-Type", "application/x-npz"),)
_JSON = (("Content-Type", "application/json"),)
_GZIP = (("Content-Encoding", "gzip"),)
_DEFLATE = (("Content-Encoding", "deflate"),)
_IMAGE = (("Content-Type", "image/png"),)


def _inputs(values: bytes) -> bytes:
    head = b'{"inputs":[{"name":"image","datatype":"FP32","shape":[1,3,16,16],"data":['
    room = (JSON_LARGE - len(head) - 16) // len(values)
    return head + values * room + b"0]}]}"


BOMBS = (
    *(Bomb(f"npy-{n}", TENSORS, lambda n=n: long_header(n), _NPZ) for n in (1, 2, 3)),
    Bomb("npz-endless", TENSORS, endless_array, _NPZ),
    Bomb("npz-terabyte", TENSORS, huge_array, _NPZ),
    Bomb("npz-entries", TENSORS, many_entries, _NPZ),
    Bomb("npz-entries-64", TENSORS, many_entries_64, _NPZ),
    Bomb("npz-lzma", TENSORS, lzma_dictionary, _NPZ),
    Bomb("json-lists", OIP, lambda: b"[" + b"[]," * (LARGE // 3) + b"0]", _JSON),
    Bomb("json-plan", "/v1/plans/digits", lambda: b"[" + b"[]," * (LARGE // 3) + b"0]", _JSON),
    Bomb("json-lists-8", OIP, lambda: _inputs(b"[],"), _JSON),
    Bomb("json-objects-8", OIP, lambda: _inputs(b"{},"), _JSON),
    Bomb("json-floats-8", OIP, lambda: _inputs(b"1e1,"), _JSON),
    Bomb("json-text-8", OIP, lambda: _inputs(b'"\xc3\xa9\xe2\x82\xac",'), _JSON),
    Bomb(
        "json-binary",
        OIP,
        lambda: b"[" + b"[]," * (LARGE // 3) + b"0]",
        (("Inference-Header-Content-Length", str(LARGE)),),
    ),
    Bomb("form-data", IMAGE, lambda: form(_HEAD + b"\r\n" + b"\r\n--y" * 11_000_000), _FORM),
    Bomb("form-returns", IMAGE, lambda: form(_HEAD + b"\r\n" + b"\r" * LARGE), _FORM),
    Bomb("form-parts", IMAGE, lambda: form(*[_HEAD + b"\r\n\r\n"] * 900_000), _FORM),
    Bomb("form-head", IMAGE, lambda: form(_HEAD + b"a: " + b"b" * LARGE + b"\r\n\r\n"), _FORM),
    Bomb("form-heads", IMAGE, lambda: form(_HEAD + b"a: b\r\n" * 10_000_000), _FORM),
    Bomb(
        "form-field",
        IMAGE,
        lambda: form(b'Content-Disposition: form-data; name="a"\r\n\r\n' + bytes(LARGE)),
        _FORM,
    ),
    Bomb("gzip", IMAGE, lambda: gzip.compress(bytes(1_000_000_000), 1), _GZIP),
    Bomb("gzip-members", IMAGE, lambda: gzip.compress(b"") * 3_000_000, _GZIP),
    Bomb(
        "deflate",
        IMAGE,
        lambda: zlib.compress(bytes(1_000_000_000), 1),
        (("Content-Encoding", "deflate"),),
    ),
    Bomb("png-rgba", IMAGE, lambda: picture("RGBA", "PNG"), _IMAGE),
    Bomb("png-16", IMAGE, lambda: picture("I;16", "PNG"), _IMAGE),
    Bomb("jpeg-progressive", IMAGE, lambda: picture("RGB", "JPEG", progressive=True), _IMAGE),
    Bomb("jpeg-cmyk", IMAGE, lambda: picture("CMYK", "JPEG"), _IMAGE),
    Bomb("webp", IMAGE, lambda: picture("RGB", "WEBP", 2000, lossless=True), _IMAGE),
)


def messages() -> dict[str, bytes]:
    """ModelInferRequests, as bytes."""
    named = pb.ModelInferRequest(model_name="stored").SerializeToString()
    typed = pb.ModelInferRequest.InferInputTensor(name="image", datatype="FP32").SerializeToString()

    def field(number: int, data: bytes) -> bytes:
        length, shown = len(data), bytearray()
        while length > 0x7F:
            shown.append(length & 0x7F | 0x80)
            length >>= 7
        return bytes([number << 3 | 2]) + bytes(shown) + bytes([length]) + data

    return {
        "inputs": named + b"\x2a\x00" * (LARGE // 2),
        "parameters": named + b"\x22\x00" * (LARGE // 2),
        "raw": named + b"\x3a\x00" * (LARGE // 2),
        "shape": named + field(5, typed + field(3, b"\x01" * LARGE)),
        "shape-8": named + field(5, typed + field(3, b"\x01" * (JSON_LARGE - 1000))),
        "contents": named + field(5, typed + field(5, b"\x42\x00" * (LARGE // 2))),
        "contents-8": named + field(5, typed + field(5, b"\x42\x00" * (JSON_LARGE // 2 - 500))),
        "int64-8": named + field(5, typed + field(5, field(3, b"\x01" * (JSON_LARGE - 1000)))),
        "unknown": named + field(15, bytes(LARGE)),
    }
