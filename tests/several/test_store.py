"""The models' folder of a coordinator that shares its cluster's state."""

from __future__ import annotations

import os
import sys

import pytest

from benchmarks.store import stored
from coordinator.library.sharing import SERVED_BY, open_store
from coordinator.several.follower import survey
from coordinator.several.joining import move
from coordinator.several.listed import ListedFile, read
from coordinator.several.replicated import record
from coordinator.several.shared_store import MARK, SharedStore, files_of
from coordinator.several.where import own_address, sources
from coordinator.trust.cluster_state import COORDINATORS, DEFAULTS, MODELS, ClusterState
from coordinator.trust.open_state import open_state
from coordinator.trust.trust import own_name
from models.catalogue.installed import MODEL_FILE, Store
from protos.errors import BadConfiguration, BadRequest, NotFound, Unavailable
from tests.several.store import needs_server
from tests.trust.support import make_trust

OURS, THEIRS = "f" * 64, "0" * 64


def writing(content: bytes):
    return lambda folder: (folder / MODEL_FILE).write_bytes(content)


@pytest.fixture
def state(tmp_path):
    (tmp_path / "state").mkdir()
    return ClusterState(tmp_path / "state")


@pytest.fixture
def shared(tmp_path, state):
    return SharedStore(state, OURS, "a" * 12, tmp_path / "models")


def listed(state):
    models, problems = read(state.entries(MODELS))
    assert not problems
    return {name: sorted(each.versions) for name, each in models.items() if each.versions}


def test_added_and_removed_models_are_so_in_the_cluster(shared, state):
    assert [shared.put("yard", writing(each)) for each in (b"1", b"2")] == [1, 2]
    shared.choose("detection", "yard")
    assert listed(state) == {"yard": [1, 2]}
    assert shared.missing() == {}
    shared.delete("yard", (1,))
    assert shared.missing() == {"yard": [1]}
    assert shared.remove("yard") == (1, 2)
    assert (listed(state), shared.installed(), state.entries(DEFAULTS)) == ({}, {}, {})
    assert shared.put("yard", writing(b"3")) == 3
    with pytest.raises(NotFound, match="no version 9"):
        shared.remove("yard", 9)
    with pytest.raises(NotFound):
        shared.remove("none")


def test_unwritable_model_is_not_listed(shared, state, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared, "mark", full)
    with pytest.raises(BadConfiguration, match="No space left"):
        shared.put("yard", writing(b"1"))
    assert (listed(state), shared.installed()) == ({}, {})


def test_change_that_the_cluster_refuses_is_not_made_here(shared, monkeypatch):
    shared.put("kept", writing(b"1"))

    def refuse(*_):
        raise Unavailable(cause="no quorum", cure="wait")

    monkeypatch.setattr(shared.state, "change", refuse)
    for change in (
        lambda: shared.put("yard", writing(b"1")),
        lambda: shared.remove("kept"),
        lambda: shared.choose("detection", "kept"),
    ):
        with pytest.raises(Unavailable):
            change()
    assert list(shared.installed()) == ["kept"]
    assert not (shared.root / "yard").exists()
    assert shared.defaults() == {}


def test_a_version_that_is_unlisted_here_only_is_removed_here(shared):
    Store(shared.root).put("yard", writing(b"1"))
    assert shared.remove("yard") == (1,)
    assert shared.installed() == {}


@pytest.mark.parametrize("odd", ["a folder", "many", "a name"])
def test_model_that_cannot_be_shared_is_named(shared, odd):
    def write(folder):
        writing(b"1")(folder)
        match odd:
            case "a folder":
                (folder / "weights").mkdir()
            case "many":
                for number in range(9):
                    (folder / f"{number}.txt").touch()
            case _:
                (folder / "ünusual").touch()

    with pytest.raises(BadRequest, match="cannot be shared"):
        shared.put("yard", write)
    assert shared.installed() == {}


# ---------------------------------------------------------------- what a survey sees


def seen(shared, state):
    return survey(shared, read(state.entries(MODELS))[0])


def test_a_version_is_the_clusters_new_or_removed(shared, state):
    shared.put("yard", writing(b"1"))
    assert list(seen(shared, state).here) == [("yard", 1)]
    Store(shared.root).put("yard", writing(b"2"))
    assert list(seen(shared, state).unlisted) == [("yard", 2)]
    state.change((MODELS,), lambda entries: entries["yard"]["versions"].clear())
    found = seen(shared, state)
    assert (found.removed, list(found.unlisted)) == ([("yard", 1)], [("yard", 2)])


def test_an_older_state_of_the_cluster_removes_nothing(shared, state):
    shared.put("yard", writing(b"1"))
    state.change((MODELS,), lambda entries: entries.clear())
    found = seen(shared, state)
    assert (found.removed, list(found.unlisted)) == ([], [("yard", 1)])


def test_models_of_another_cluster_are_new(shared, state):

    shared.put("yard", writing(b"1"))
    theirs = SharedStore(state, THEIRS, "b" * 12, shared.root)
    state.change((MODELS,), lambda entries: entries["yard"]["versions"].clear())
    found = seen(theirs, state)
    assert (found.removed, list(found.unlisted)) == ([], [("yard", 1)])


def test_a_copy_of_the_clusters_is_not_new(shared, state):
    shared.put("yard", writing(b"1"))
    folder = shared.root / "yard" / "1"
    (folder / MARK).unlink()
    assert list(seen(shared, state).here) == [("yard", 1)]
    assert (folder / MARK).exists()


def test_a_file_that_was_changed_in_place_is_seen(shared, state):
    shared.put("yard", writing(b"1"))
    folder = shared.root / "yard" / "1"
    later = (folder / MARK).stat().st_mtime_ns + 10**9
    (folder / MODEL_FILE).write_bytes(b"2")
    os.utime(folder / MODEL_FILE, ns=(later, later))
    assert list(seen(shared, state).edited) == [("yard", 1)]
    (folder / MODEL_FILE).write_bytes(b"1")
    assert list(seen(shared, state).here) == [("yard", 1)]


@pytest.mark.parametrize("mark", [b"", b"garbage", b"[]", b'{"authority": 1}', b"\xff\xfe"])
def test_a_damaged_mark_is_none(shared, state, mark):
    shared.put("yard", writing(b"1"))
    (shared.root / "yard" / "1" / MARK).write_bytes(mark)
    assert list(seen(shared, state).here) == [("yard", 1)]


def test_files_are_known_by_their_content(tmp_path):
    writing(b"1")(tmp_path)
    (tmp_path / ".hidden").touch()
    (found,) = files_of(tmp_path).values()
    assert found == ListedFile(
        "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b", 1
    )


# ---------------------------------------------------------------- whose folder it is


def test_store_without_a_shared_state_is_the_plain_one(tmp_path):
    for told in (None, str(tmp_path / "gone"), str(tmp_path / "alone"), "\0"):
        root = tmp_path / "models"
        root.mkdir(exist_ok=True)
        if told is not None:
            (root / SERVED_BY).write_text(told)
        make_trust(tmp_path / "alone") if not (tmp_path / "alone").exists() else None
        assert type(open_store(root)) is Store


@needs_server
def test_the_folder_says_where_the_state_is_and_moves_carry_the_models(tmp_path):
    state_dir, root = tmp_path / "first", tmp_path / "models"
    make_trust(state_dir)
    with stored(tmp_path) as store:
        move(state_dir, store.url, replace=False)
        Store(root).put("before", writing(b"1"))
        state = open_state(state_dir)
        SharedStore(state, OURS, "a" * 12, root).serve_from(state_dir)
        shared = open_store(root)
        assert isinstance(shared, SharedStore)
        assert shared.own_id == own_name(state_dir).partition(" ")[0]
        shared.put("yard", writing(b"1"))
        assert listed(shared.state) == {"yard": [1]}
        shared.state.close()
        move(state_dir, "files", replace=False)
        assert listed(ClusterState(state_dir)) == {"yard": [1]}
        assert type(open_store(root)) is Store
        # Alone, the folder is what counts: it is listed again when the coordinator starts.
        Store(root).put("yard", writing(b"2"))
        Store(root).remove("yard", 1)
        move(state_dir, store.url, replace=True)
        again = open_store(root)
        assert listed(again.state) == {}
        assert set(seen(again, again.state).unlisted) == {("before", 1), ("yard", 2)}
        again.put("gate", writing(b"1"))
        again.state.close()
        move(state_dir, store.url, replace=True)
        carried = open_store(root)
        assert listed(carried.state) == {"gate": [1]}
        carried.state.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_changes_no_folder_of_somebody_else(tmp_path):
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(BadConfiguration, match="runs as root") as caught:
        open_store(tmp_path)
    assert "sudo -u" in caught.value.cure
    assert open_store(tmp_path, to_change=False).installed() == {}
    assert open_store(tmp_path / "none").installed() == {}


def test_a_lock_that_leads_elsewhere_is_not_followed(tmp_path, state):
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "state" / "models.lock").symlink_to(elsewhere)
    with pytest.raises(BadConfiguration, match="cannot be used"):
        state.change((MODELS,), lambda entries: entries.clear())
    assert not elsewhere.exists()


def test_a_folder_that_cannot_be_written_is_said(tmp_path, state):
    (tmp_path / "file").touch()
    shared = SharedStore(state, OURS, "a" * 12, tmp_path / "file" / "models")
    with pytest.raises(BadConfiguration, match="cannot be used"):
        shared.serve_from(tmp_path)


# ---------------------------------------------------------------- where others ask


@pytest.mark.parametrize(
    ("url", "host", "expected"),
    [
        ("nats://pi-1.local:4222", "192.168.1.7", "192.168.1.7:8463"),
        ("nats://pi-1.local:4222", "fd00::7", "[fd00::7]:8463"),
        ("nats://a:4222", "pi-1.local", "pi-1.local:8463"),
        ("nats://127.0.0.1:4222,127.0.0.1:4223", "0.0.0.0", "127.0.0.1:8463"),
    ],
)
def test_address_of_a_lender_follows_its_hosts_route(url, host, expected):
    assert own_address(url, host, 8463) == expected


def test_a_store_on_this_machine_does_not_make_it_say_loopback():
    found = own_address("nats://127.0.0.1:4222,192.0.2.9:4222", "0.0.0.0", 8463)
    assert not found.startswith("127.")


@pytest.mark.parametrize(
    ("other", "address"),
    [
        ("b" * 12, "unix:/run/x:1"),
        ("b" * 12, "dns:///pi-2:1"),
        ("b" * 12, "pi-2"),
        ("b" * 12, ""),
        ("b" * 12, 8463),
        ("b" * 12, "pi-2:8463\n"),
        ("../../etc", "pi-2:8463"),
        ("a" * 12, "pi-1:8463"),
    ],
)
def test_only_hosts_and_ports_of_others_are_asked(tmp_path, state, other, address):
    told = {"name": "pi-2", "since": "", "expires": "", "address": address}
    (tmp_path / "state" / "cluster").mkdir()
    state.change((COORDINATORS,), lambda entries: entries.update({other: told}))
    assert sources(state.entries(COORDINATORS), "a" * 12) == []


def test_coordinators_with_an_address_are_asked():
    told = {"c" * 12: {"name": "pi-3", "address": "[fe80::1]:8463"}}
    (found,) = sources(told, "a" * 12)
    assert (found.name, found.address) == ("pi-3", "[fe80::1]:8463")


def test_a_shared_folder_needs_the_package_that_shares(tmp_path, monkeypatch):
    make_trust(tmp_path / "state")
    record(tmp_path / "state", "nats://127.0.0.1:9")
    (tmp_path / SERVED_BY).write_text(str(tmp_path / "state"))
    monkeypatch.setitem(sys.modules, "coordinator.several.shared_store", None)
    with pytest.raises(NotFound, match=r"lacks coordinator\.several"):
        open_store(tmp_path)
