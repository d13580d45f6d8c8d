"""A cluster's state in a store that coordinators share: real servers, and ways to lose them."""

import asyncio
import threading

import pytest
from nats.js.kv import KeyValue

from benchmarks.store import stored
from coordinator.serving.common.keys import Keys, Role
from coordinator.several import replicated
from coordinator.several.joining import move
from coordinator.several.nats_store import StoreAddress
from coordinator.several.replicated import Replicated, address_of, record
from coordinator.several.shared_value import MOST_BYTES, Shared, dumped, parsed
from coordinator.trust.backup import backup, restore
from coordinator.trust.cluster_state import COORDINATORS, DEVICES, DRAINED, KEYS, ClusterState
from coordinator.trust.open_state import open_state
from coordinator.trust.trust import Trust
from protos.errors import BadConfiguration, BadRequest, Infeasible, PeerViolation, Unavailable
from protos.trust.identity import keep_identity, now_utc
from tests.cli.run_cli import imbrex_forked
from tests.serving.processes import wait
from tests.several.store import alone, needs_server
from tests.trust.support import HALL, KITCHEN, admit, make_trust


@pytest.fixture
def state_dir(tmp_path):
    """A coordinator with a member and a key, its state in files."""
    admit(make_trust(tmp_path / "first").certified, KITCHEN)
    Keys(ClusterState(tmp_path / "first")).add("camera", Role.INFER)
    return tmp_path / "first"


@pytest.fixture
def opened():
    """Opens states, and closes them at the end."""
    states = []

    def opens(folder):
        states.append(open_state(folder))
        states[-1].follow()
        wait(lambda: not states[-1].problem)
        return states[-1]

    yield opens
    for each in states:
        each.close()


def copied(state_dir, folder, url):
    """The state directory of a coordinator that has joined, as far as the state matters."""
    (folder / "cluster").mkdir(parents=True)
    authority = (state_dir / "cluster" / "authority.pem").read_bytes()
    (folder / "cluster" / "authority.pem").write_bytes(authority)
    record(folder, url)
    return folder


def drain(state, device):
    state.change((DRAINED,), lambda entries: entries.update({device: {"name": device}}))


# ---------------------------------------------------------------- one server


@needs_server
def test_state_moves_to_the_store_and_back(tmp_path, state_dir, opened):
    before = {name: ClusterState(state_dir).entries(name) for name in (DEVICES, KEYS)}
    with stored(tmp_path) as store:
        move(state_dir, store.url, replace=False)
        first = opened(state_dir)
        second = opened(copied(state_dir, tmp_path / "second", store.url))
        for state in (first, second):
            assert {name: state.entries(name) for name in (DEVICES, KEYS)} == before
            (only,) = state.entries(COORDINATORS).values()
            assert only["signs"]

        drain(second, HALL)
        wait(lambda: HALL in first.entries(DRAINED))
        first.change((DEVICES,), lambda entries: entries.clear())
        wait(lambda: not second.entries(DEVICES))

        with pytest.raises(BadRequest, match="holds the state of a cluster already"):
            move(state_dir, store.url, replace=False)
        first.close()
        move(state_dir, "files", replace=False)
        assert address_of(state_dir) is None
        assert list(open_state(state_dir).entries(DRAINED)) == [HALL]


@needs_server
def test_changes_of_many_at_a_time_are_all_kept(tmp_path, state_dir, opened, monkeypatch):
    monkeypatch.setattr(replicated, "_MOST_TRIES", 1000)
    with stored(tmp_path) as store:
        move(state_dir, store.url, replace=False)
        states = [opened(state_dir), opened(copied(state_dir, tmp_path / "second", store.url))]

        def drain_some(number):
            for index in range(10):
                drain(states[number % 2], f"{number}-{index}")

        threads = [threading.Thread(target=drain_some, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        wanted = {f"{number}-{index}" for number in range(4) for index in range(10)}
        for state in states:
            wait(lambda state=state: set(state.entries(DRAINED)) == wanted)


@needs_server
def test_a_change_is_kept_whose_answer_comes_after_the_next_change(
    tmp_path, state_dir, opened, monkeypatch
):
    with stored(tmp_path) as store:
        move(state_dir, store.url, replace=False)
        first, second = (
            opened(state_dir),
            opened(copied(state_dir, tmp_path / "second", store.url)),
        )
        update = KeyValue.update

        async def answered_late(*args, **named):
            monkeypatch.setattr(KeyValue, "update", update)
            revision = await update(*args, **named)
            await asyncio.to_thread(_certified(state_dir, second).roster.remove, KITCHEN)
            while KITCHEN in first.entries(DEVICES):
                await asyncio.sleep(0.01)
            return revision

        monkeypatch.setattr(KeyValue, "update", answered_late)
        drain(first, HALL)
        for state in (first, second):
            assert HALL in state.entries(DRAINED)
            assert KITCHEN not in state.entries(DEVICES)


@needs_server
def test_garbage_in_the_store_changes_nothing_and_is_said(tmp_path, state_dir, opened):
    with stored(tmp_path) as store:
        move(state_dir, store.url, replace=False)
        state = opened(state_dir)
        before = state.entries(DEVICES)
        store.put(b'{"format": 1, "epoch": "e", "authority": "f", "documents": {"keys": {}}}')
        wait(lambda: "another cluster's" in state.problem)
        store.put(b"garbage")
        wait(lambda: "not the state of a cluster" in state.problem)
        assert state.entries(DEVICES) == before
        with pytest.raises(PeerViolation, match="not the state of a cluster"):
            drain(state, HALL)
        state.close()
        move(state_dir, store.url, replace=True)
        mended = opened(state_dir)
        drain(mended, HALL)
        assert HALL in mended.entries(DRAINED)


@needs_server
def test_an_older_state_lets_nobody_in(tmp_path, state_dir, opened):
    with stored(tmp_path) as store:
        move(state_dir, store.url, replace=False)
        state = opened(state_dir)
        own = parsed(dumped(_shared(state_dir, "another epoch")))
        Trust.load(state_dir, state=state).certified.roster.remove(KITCHEN)
        store.put(dumped(own))
        wait(lambda: "older than this coordinator's copy" in state.problem)
        assert KITCHEN not in state.entries(DEVICES)


def _shared(state_dir, epoch):
    authority = Trust.load(state_dir, state=ClusterState(state_dir)).certified.authority.fingerprint
    files = ClusterState(state_dir)
    documents = {name: files.entries(name) for name in (DEVICES, "cluster/generation")}
    return Shared(epoch, authority, documents)


@needs_server
def test_state_that_would_be_too_large_is_refused(tmp_path, state_dir, opened):
    with stored(tmp_path) as store:
        move(state_dir, store.url, replace=False)
        state = opened(state_dir)
        with pytest.raises(Infeasible, match="the cluster's state would take"):
            drain(state, "x" * MOST_BYTES)
        assert not state.entries(DRAINED)


@needs_server
def test_changes_per_minute_are_limited(tmp_path, state_dir, opened):
    with stored(tmp_path) as store:
        move(state_dir, store.url, replace=False)
        state = opened(state_dir)
        for number in range(replicated.MOST_CHANGES_A_MINUTE):
            drain(state, str(number))
        with pytest.raises(Unavailable, match="times in a minute"):
            drain(state, HALL)


@needs_server
def test_only_changes_that_are_written_count(tmp_path, state_dir, opened, monkeypatch):
    monkeypatch.setattr(replicated, "MOST_CHANGES_A_MINUTE", 2)
    with stored(tmp_path) as store:
        move(state_dir, store.url, replace=False)
        state = opened(state_dir)
        (node,) = store.nodes
        node.kill()
        for _ in range(replicated.MOST_CHANGES_A_MINUTE):
            with pytest.raises(Unavailable, match="cannot be changed"):
                drain(state, HALL)
        node.start()
        wait(lambda: _drains(state, HALL), 30.0)


@needs_server
@pytest.mark.parametrize("credentials", ["", "stranger:stranger@", "coordinator:wrong@"])
def test_wrong_credentials_are_refused_without_being_shown(tmp_path, state_dir, credentials):
    with stored(tmp_path, extra=alone(["coordinator"]), credentials=credentials) as store:
        with pytest.raises(Unavailable, match=r"(?i)authorization") as caught:
            move(state_dir, store.url, replace=False)
        assert "wrong" not in str(caught.value)
        assert address_of(state_dir) is None
        store.credentials = "coordinator:coordinator@"
        move(state_dir, store.url, replace=False)


def test_move_to_an_absent_store_is_refused(state_dir):
    with pytest.raises(Unavailable, match="cannot be changed"):
        move(state_dir, "nats://127.0.0.1:9", replace=False)
    assert address_of(state_dir) is None


# ---------------------------------------------------------------- losing servers


@needs_server
@pytest.mark.parametrize("which", ["leader", pytest.param("each", marks=pytest.mark.slow)])
def test_store_survives_the_loss_of_one_server_of_three(tmp_path, state_dir, opened, which):
    with stored(tmp_path, 3) as store:
        move(state_dir, store.url, replace=False)
        states = [opened(state_dir), opened(copied(state_dir, tmp_path / "second", store.url))]
        for number, node in enumerate([store.leader()] if which == "leader" else store.nodes):
            node.kill()
            wait(lambda number=number: _drains(states[number % 2], f"{number}"))
            for state in states:
                wait(lambda state=state, number=number: f"{number}" in state.entries(DRAINED))
            node.start()
            wait(lambda: all(not state.problem for state in states))


@needs_server
@pytest.mark.parametrize("number", range(3))  # one of them leads
def test_a_state_moves_there_while_a_server_is_restarted(tmp_path, state_dir, number):
    with stored(tmp_path, 3) as store:
        node = store.nodes[number]
        node.kill()
        starting = threading.Timer(1, node.start)
        starting.start()
        try:
            move(state_dir, store.url, replace=False)
        finally:
            starting.join()
    assert address_of(state_dir) == StoreAddress(store.url)


@needs_server
@pytest.mark.parametrize("harm", [pytest.param("kill", marks=pytest.mark.slow), "pause"])
def test_state_without_a_quorum_is_read_and_refuses_changes(tmp_path, state_dir, opened, harm):
    with stored(tmp_path, 3) as store:
        move(state_dir, store.url, replace=False)
        state = opened(state_dir)
        for node in store.nodes[:2]:
            getattr(node, harm)()
        # Not a removal: one that takes effect at some servers only has to be put there by hand.
        with pytest.raises(Unavailable, match="More than half of its servers"):
            drain(state, KITCHEN)
        wait(lambda: "what is known here is" in state.problem)
        assert KITCHEN in state.entries(DEVICES)
        assert KITCHEN not in state.entries(DRAINED)
        for node in store.nodes[:2]:
            node.start() if harm == "kill" else node.go_on()
        wait(lambda: not state.problem)
        wait(lambda: _drains(state, HALL))
        assert HALL in state.entries(DRAINED)


def _certified(state_dir, state):
    return Trust.load(state_dir, state=state).certified


def _drains(state, device):
    try:
        drain(state, device)
    except Unavailable:
        return False
    return True


@needs_server
def test_coordinator_started_without_the_store_says_how_old_its_copy_is(tmp_path, state_dir):
    with stored(tmp_path) as store:
        move(state_dir, store.url, replace=False)
    state = open_state(state_dir)
    state.follow()
    try:
        assert KITCHEN in state.entries(DEVICES)
        wait(lambda: "not answered yet" not in state.problem)
        assert "what is known here is 0:0" in state.problem
        assert isinstance(state, Replicated)
    finally:
        state.close()


# ---------------------------------------------------------------- TLS


@needs_server
def test_store_admits_coordinators_of_the_cluster_only(tmp_path, state_dir, opened):
    trust = Trust.load(state_dir)
    with stored(tmp_path, 1, authority=trust.certified.authority) as store:
        move(state_dir, store.url, replace=False)
        drain(opened(state_dir), HALL)

        worker = copied(state_dir, tmp_path / "worker", store.url)
        _give(worker, trust.certified.authority.for_store(["127.0.0.1"], now_utc()))
        stranger = copied(state_dir, tmp_path / "stranger", store.url)
        other = make_trust(tmp_path / "other").certified
        _give(stranger, other.credentials.identity)
        for folder in (worker, stranger):
            state = open_state(folder)
            with pytest.raises(Unavailable):
                drain(state, KITCHEN)
            state.close()


def _give(folder, identity):
    keep_identity(folder / "cluster" / "coordinator.pem", identity)


@needs_server
def test_a_server_without_tls_gets_nothing(tmp_path, state_dir):
    with stored(tmp_path) as store:
        store.scheme = "tls"
        with pytest.raises((Unavailable, PeerViolation), match="plain text"):
            move(state_dir, store.url, replace=False)


# ---------------------------------------------------------------- backups, commands


@needs_server
def test_a_backup_of_a_shared_state_comes_back_and_follows(tmp_path, state_dir, opened):
    with stored(tmp_path) as store:
        move(state_dir, store.url, replace=False)
        names = backup(state_dir, tmp_path / "backup.tgz")
        assert {"cluster/state.json", "coordinator-id"} <= set(names)
        drain(opened(state_dir), HALL)
        restore(tmp_path / "backup.tgz", tmp_path / "after")
        again = opened(tmp_path / "after")
        assert KITCHEN in again.entries(DEVICES)
        wait(lambda: HALL in again.entries(DRAINED))


@needs_server
def test_the_commands(tmp_path, state_dir):
    own = ("--state-dir", state_dir, "--json")
    refused = imbrex_forked("cluster", "invite", "--coordinator", *own)
    assert (refused.code, "move-state" in refused.out) == (1, True)
    with stored(tmp_path) as store:
        moved = imbrex_forked("cluster", "move-state", store.url, *own)
        assert moved.json() == {"state": store.url}
        assert imbrex_forked("cluster", "invite", "--coordinator", *own).json()["token"]
        imbrex_forked("cluster", "key", "me", "--role", "admin", *own)
        listed = imbrex_forked("cluster", "list", *own).json()
        assert [each["id"] for each in listed["devices"]] == [KITCHEN]
        (first,) = listed["coordinators"]
        kept = imbrex_forked("cluster", "remove", first["id"], *own)
        assert (kept.code, "authority's key" in kept.out) == (1, True)
        imbrex_forked("cluster", "remove", KITCHEN, *own)
        back = imbrex_forked("cluster", "move-state", "files", *own)
        assert back.json() == {"state": "files"}
    state = open_state(state_dir)
    assert isinstance(state, ClusterState)
    assert (list(state.entries(DEVICES)), sorted(state.entries(KEYS))) == ([], ["camera", "me"])


def test_a_damaged_record_is_named(state_dir):
    (state_dir / "cluster" / "state.json").write_text("[]")
    with pytest.raises(BadConfiguration, match=r"state\.json cannot be used"):
        open_state(state_dir)
