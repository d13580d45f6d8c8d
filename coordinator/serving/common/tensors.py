"""Tensors over HTTP: NumPy's .npz, checked against the graph before a byte is allocated.

An archive may claim any size, type or shape. Each member's header is read first and compared with
the model's input; only then are exactly that many bytes read. Nothing is unpickled.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from io import BytesIO
from typing import IO

import numpy as np
from numpy.lib import format as npy

from models.graph.graph import Graph
from models.graph.shapes import TensorInfo
from models.tensors.arrays import Arrays
from protos.errors import BadRequest

_SUFFIX = ".npy"
# Members of an archive: a model has a few inputs. A header takes a hundred bytes.
LONGEST_HEADER_BYTES = 64 << 10
LONGEST_DIRECTORY_BYTES = 64 << 10
# Size of the header's length field, by the version of .npy.
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
# The methods that numpy writes; others can claim gigabytes for their dictionaries.
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_END, _END_OF_64 = b"PK\5\6", b"PK\6\7"
_END_BYTES = 22
_LONGEST_COMMENT_BYTES = (1 << 16) - 1
# zipfile raises the last one for a compression or encryption that it does not support.
_BROKEN = (zipfile.BadZipFile, zlib.error, ValueError, OSError, EOFError, NotImplementedError)


def read_tensors(body: bytes, graph: Graph) -> dict[str, np.ndarray]:
    """The graph's inputs from an .npz body; a picture may be given as pixels (uint8).

    Raises:
        BadRequest: not an archive, an input is missing or unknown, has another shape or type, or is
            shorter than it claims.
    """
    if not body:
        raise BadRequest(cause="the body is empty", cure=_wanted(graph))
    try:
        _require_small_directory(body)
        with zipfile.ZipFile(BytesIO(body)) as archive:
            members = {_tensor_name(name): name for name in archive.namelist()}
            _require_names(set(members), graph)
            return {
                name: _read_one(archive, members[name], graph.tensors[name])
                for name in graph.inputs
            }
    except _BROKEN as error:
        raise BadRequest(
            cause=f"the body is not a usable .npz archive ({error})", cure=_wanted(graph)
        ) from error


def write_tensors(arrays: Arrays) -> bytes:
    """An uncompressed .npz of these arrays."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(name + _SUFFIX, "w", force_zip64=True) as member:
                npy.write_array(member, np.asanyarray(array), allow_pickle=False)
    return buffer.getvalue()


def load_tensors(body: bytes) -> dict[str, np.ndarray]:
    """Every array in an .npz archive from a coordinator."""
    with np.load(BytesIO(body), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _read_one(archive: zipfile.ZipFile, member: str, info: TensorInfo) -> np.ndarray:
    name = _tensor_name(member)
    if archive.getinfo(member).compress_type not in _COMPRESSIONS:
        raise ValueError(f"the tensor {name!r} is not packed as numpy packs it")
    with archive.open(member) as file:
        shape, fortran, dtype = _header(file)
        kind = dtype if dtype in info.accepted else info.dtype
        if shape != info.shape or dtype != kind:
            raise BadRequest(
                cause=f"the tensor {name!r} is {dtype}{list(shape)}",
                cure=f"The model's input {name!r} is {kind}{list(info.shape)}",
            )
        size = dtype.itemsize * math.prod(shape)
        data = file.read(size)
        if len(data) != size:
            raise BadRequest(
                cause=f"the tensor {name!r} ends after {len(data)} of {size} bytes",
                cure="Send the whole archive",
            )
    flat = np.frombuffer(data, dtype)
    return np.ascontiguousarray(flat.reshape(shape, order="F" if fortran else "C"))


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Shape, whether columns come first, and type of the array that follows. The header's length is
    checked first, because numpy reads that much before it validates the header.
    """
    version = npy.read_magic(file)
    if version not in _LENGTH_BYTES:
        raise ValueError(f"a member is of the .npy version {version}")
    length_bytes = file.read(_LENGTH_BYTES[version])
    length = int.from_bytes(length_bytes, "little")
    if length > LONGEST_HEADER_BYTES:
        raise ValueError(f"a member's header claims {length} bytes")
    header = BytesIO(length_bytes + file.read(length))
    if version == (1, 0):
        return npy.read_array_header_1_0(header)
    return npy.read_array_header_2_0(header)


def _require_small_directory(body: bytes) -> None:
    """Checks the size of the archive's directory before zipfile reads it, since each entry becomes
    an object. The end of the archive is found as zipfile does (APPNOTE 4.3.16).

    Raises:
        ValueError: the directory is too long, or in ZIP64 format.
    """
    at = len(body) - _END_BYTES
    if not (body[at:].startswith(_END) and body.endswith(b"\0\0")):
        at = body.rfind(_END, max(0, at - _LONGEST_COMMENT_BYTES))
    if at < 0 or len(body) - at < _END_BYTES:
        return  # zipfile will report what is wrong
    length = int.from_bytes(body[at + 12 : at + 16], "little")
    if length > LONGEST_DIRECTORY_BYTES or body[max(0, at - 20) : at].startswith(_END_OF_64):
        raise ValueError("its directory is too long")


def _require_names(sent: set[str], graph: Graph) -> None:
    missing, unknown = set(graph.inputs) - sent, sent - set(graph.inputs)
    if missing or unknown:
        problems = [f"{name!r} is missing" for name in sorted(missing)]
        problems += [f"{name!r} is unknown" for name in sorted(unknown)]
        raise BadRequest(
            cause=f"the archive's tensors are not the model's inputs: {', '.join(problems[:8])}",
            cure=_wanted(graph),
        )


def _tensor_name(member: str) -> str:
    return member.removesuffix(_SUFFIX)


def _wanted(graph: Graph) -> str:
    inputs = (
        f"{name}={graph.tensors[name].dtype}{list(graph.shape(name))}" for name in graph.inputs
    )
    return f"Send numpy.savez of {', '.join(inputs)}"
