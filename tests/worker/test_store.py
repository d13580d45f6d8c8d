import errno
import hashlib
import os

import pytest

from protos.errors import BadRequest, Unavailable
from worker.programs import store as store_module
from worker.programs.store import BlobStore

DATA = bytes(range(256)) * 40
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def store(tmp_path):
    return BlobStore(tmp_path, 1 << 20)


def add(store, data):
    sha256 = hashlib.sha256(data).hexdigest()
    store.append(sha256, 0, len(data), data)
    store.complete(sha256, len(data))
    return sha256


def test_a_blob_in_parts(store):
    store.append(SHA, 0, len(DATA), DATA[:100])
    assert SHA not in store
    assert store.have_bytes(SHA) == 100
    store.append(SHA, 100, len(DATA), DATA[100:])
    store.complete(SHA, len(DATA))
    assert SHA in store
    assert store.path(SHA).read_bytes() == DATA
    assert store.missing([SHA, "0" * 64, SHA]) == ["0" * 64]


def test_a_new_store_on_the_same_directory_continues(store, tmp_path):
    store.append(SHA, 0, len(DATA), DATA[:100])
    again = BlobStore(tmp_path, 1 << 20)
    assert again.have_bytes(SHA) == 100
    again.append(SHA, 100, len(DATA), DATA[100:])
    again.complete(SHA, len(DATA))


def test_an_empty_blob(store):
    assert add(store, b"") in store


def test_corrupted_bytes_are_refused_and_removed(store):
    bad = b"\x01" + DATA[1:]
    store.append(SHA, 0, len(bad), bad)
    with pytest.raises(BadRequest, match="corrupted"):
        store.complete(SHA, len(bad))
    assert SHA not in store
    assert store.have_bytes(SHA) == 0


def test_an_early_end_keeps_what_came(store):
    store.append(SHA, 0, len(DATA), DATA[:100])
    with pytest.raises(BadRequest, match="after 100 of"):
        store.complete(SHA, len(DATA))
    assert store.have_bytes(SHA) == 100


def test_bytes_that_do_not_follow_are_refused(store):
    with pytest.raises(BadRequest, match="do not continue"):
        store.append(SHA, 5, len(DATA), b"x")
    with pytest.raises(BadRequest, match="more bytes"):
        store.append(SHA, 0, 3, b"four")


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "0" * 63, "A" * 64, "0" * 63 + "/"])
def test_only_hashes_reach_the_disk(store, name):
    with pytest.raises(BadRequest, match="not a SHA-256"):
        store.append(name, 0, 1, b"x")
    with pytest.raises(BadRequest, match="not a SHA-256"):
        store.missing([name])
    assert name not in store


def test_unused_blobs_are_evicted_oldest_first(tmp_path):
    used = set()
    store = BlobStore(tmp_path, 1000)
    store.in_use = lambda: used
    first, second, third = (add(store, bytes([n]) * 300) for n in range(3))
    used.add(first)
    for age, sha256 in enumerate((first, second, third)):
        os.utime(store.path(sha256), ns=(age, age))
    fourth = add(store, b"4" * 300)
    assert [sha256 in store for sha256 in (first, second, third, fourth)] == [1, 0, 1, 1]
    used.update((third, fourth))
    with pytest.raises(Unavailable, match="no room"):
        add(store, b"5" * 300)


def test_a_full_disk_loses_nothing(store, monkeypatch):
    store.append(SHA, 0, len(DATA), DATA[:100])

    class Full:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, data):
            self.file.write(data[:7])
            self.file.flush()
            raise OSError(errno.ENOSPC, "No space left on device")

    real = store_module.Path.open
    monkeypatch.setattr(store_module.Path, "open", lambda *a, **k: Full(real(*a, **k)))
    with pytest.raises(Unavailable, match="full"):
        store.append(SHA, 100, len(DATA), DATA[100:])
    monkeypatch.undo()
    assert store.have_bytes(SHA) == 100
    store.append(SHA, 100, len(DATA), DATA[100:])
    store.complete(SHA, len(DATA))


def test_old_half_fetched_blobs_are_forgotten(store, monkeypatch):
    monkeypatch.setattr(store_module, "_MAX_PARTIAL", 2)
    for number in range(5):
        store.append(f"{number:064x}", 0, 9, b"x")
    left = [number for number in range(5) if store.have_bytes(f"{number:064x}")]
    assert len(left) <= 3
    assert 4 in left
