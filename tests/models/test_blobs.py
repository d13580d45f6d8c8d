"""Weights as plans refer to them: views of the network's own, each hashed once."""

import gc
import hashlib
import resource
from pathlib import Path

import numpy as np
import pytest

from models.cut import program
from models.cut.program import BlobSource, Digests
from models.onnx_file.mapped import MappedWeights, location_of, remove_leftovers
from models.tensors.boxes import Box

CONSTANT = np.arange(6 * 40 * 50, dtype=np.float32).reshape(6, 40, 50)
# Whole, contiguous rows, part of each row, one row, one column of one row.
BOXES = [
    Box.whole(CONSTANT.shape),
    Box.of((2, 5), (0, 40), (0, 50)),
    Box.of((0, 6), (3, 30), (7, 20)),
    Box.of((4, 5), (0, 40), (10, 11)),
    Box.of((4, 5), (39, 40), (49, 50)),
]


@pytest.mark.parametrize("box", BOXES)
def test_a_box_is_a_view_with_the_bytes_of_its_copy(box: Box) -> None:
    blobs = BlobSource()
    copy = np.ascontiguousarray(CONSTANT[box.slices()]).tobytes()
    sha256 = blobs.add_box(CONSTANT, box)
    assert sha256 == hashlib.sha256(copy).hexdigest()
    assert blobs.size_of(sha256) == len(copy)
    assert bytes(blobs.bytes_of(sha256)) == copy
    assert np.shares_memory(blobs.array_of(sha256), CONSTANT)


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("most_bytes", [4, 96, 1000, 1 << 20])
def test_chunks_resume_at_any_byte(box: Box, most_bytes: int) -> None:
    blobs = BlobSource()
    sha256 = blobs.add_box(CONSTANT, box)
    copy = bytes(blobs.bytes_of(sha256))
    for offset in {0, 1, len(copy) // 3, len(copy) - 1, len(copy)}:
        parts = list(blobs.chunks(sha256, offset, most_bytes))
        assert b"".join(parts) == copy[offset:]
        assert all(len(part) <= most_bytes for part in parts)


def test_a_box_of_another_shape_is_a_view_too() -> None:
    """As a fully connected layer's weights are divided by rows of the map before it."""
    weights = CONSTANT.reshape(6, 2000)
    blobs = BlobSource()
    box = Box.of((0, 6), (10, 20), (0, 50))
    sha256 = blobs.add_box(weights, box, shape=(6, 40, 50))
    assert bytes(blobs.bytes_of(sha256)) == CONSTANT[:, 10:20].tobytes()
    assert np.shares_memory(blobs.array_of(sha256), weights)


def test_boxes_hashed_for_one_plan_are_not_read_again_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    digest_of = program._digest
    monkeypatch.setattr(
        program, "_digest", lambda array: read.append(array.nbytes) or digest_of(array)
    )
    digests = Digests()
    first = [BlobSource(digests).add_box(CONSTANT, box) for box in BOXES]
    assert len(read) == len(BOXES)
    assert [BlobSource(digests).add_box(CONSTANT, box) for box in BOXES] == first
    assert len(read) == len(BOXES)
    other = CONSTANT + 1
    assert BlobSource(digests).add_box(other, BOXES[0]) != first[0]


def test_digests_have_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Digests, "MOST", 3)
    digests, blobs = Digests(), BlobSource()
    for box in BOXES:
        assert digests.of(CONSTANT, CONSTANT, box) == blobs.add_box(CONSTANT, box)
    monkeypatch.setattr(program, "_digest", lambda array: "read again")
    found = [digests.of(CONSTANT, CONSTANT, box) for box in reversed(BOXES)]
    assert sum(each != "read again" for each in found) == 3


def mappings() -> str:
    return Path("/proc/self/maps").read_text()


def test_weights_are_mapped_from_a_file_that_goes_with_them(tmp_path: Path) -> None:
    values = [CONSTANT, CONSTANT[::2]]
    kept = MappedWeights(tmp_path, [each.nbytes for each in values])
    arrays = [kept.empty(each.dtype, each.shape) for each in values]
    for index, each in enumerate(values):
        arrays[index][:] = each
    assert all(map(np.array_equal, arrays, values))
    assert all(array.ctypes.data % 64 == 0 for array in arrays)
    assert str(tmp_path) in mappings()
    part = arrays[0][1:4, 2:7:2, ::3]
    place = location_of(part)
    assert place is not None
    assert np.array_equal(place.array(), part)
    assert location_of(CONSTANT) is None
    assert list(tmp_path.iterdir()) == [place.path]
    del kept, arrays, part
    gc.collect()
    assert str(tmp_path) not in mappings()
    assert not list(tmp_path.iterdir())


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / "tmpabc.weights").write_bytes(b"left")
    (tmp_path / "other").write_bytes(b"not ours")
    remove_leftovers(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["other"]


def test_beyond_what_was_asked_for_arrays_are_in_memory(tmp_path: Path) -> None:
    kept = MappedWeights(tmp_path, [CONSTANT.nbytes])
    mapped, beyond = (kept.empty(CONSTANT.dtype, CONSTANT.shape) for _ in range(2))
    assert location_of(mapped) is not None
    assert location_of(beyond) is None
    assert beyond.shape == CONSTANT.shape


def test_a_full_disk_is_told_before_anything_is_written(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Stands for a full disk: growing a file beyond it fails with EFBIG instead of ENOSPC.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            MappedWeights(tmp_path, [2 << 20])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
