import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.devices.addresses import (
    FIRST_RETRY_S,
    LAST_RETRY_S,
    REFUSED_RETRY_S,
    RETRIED,
    PeerState,
)
from coordinator.devices.events import (
    AddressProblem,
    Close,
    Connect,
    Denied,
    Dropped,
    Greeted,
    Join,
    Leave,
    Sighted,
    Tick,
    Withdrawn,
)
from coordinator.devices.membership import FORGET_AFTER_S, STABLE_S, DeviceTable

A, B, C = "10.0.0.1:8470", "10.0.0.2:8470", "10.0.0.3:8470"


def membership(**caps):
    return DeviceTable(lambda: 0.0, **caps)


def next_due_s(state):
    """When the next Tick has something to do."""
    return min((peer.retry_at_s for peer in state.peers if peer.state in RETRIED), default=None)


def joined(state, address=A, device="pi", boot="boot", now=0.0, source="static"):
    assert state.step(Sighted(address, source), now) == [Connect(address)]
    assert state.step(Greeted(address, device, boot), now) == [Join(device, address)]


def state_of(state, address):
    return next(peer.state for peer in state.peers if peer.address == address)


def test_found_greeted_lost_and_back():
    state = membership()
    joined(state)
    assert state.ready == {"pi": A}
    assert next_due_s(state) is None
    assert state.step(Dropped(A, "reset"), 20.0) == [Leave("pi", A, "reset")]
    assert state.ready == {}
    assert next_due_s(state) == 20.0 + FIRST_RETRY_S / 2
    assert state.step(Tick(), 20.1) == []
    assert state.step(Tick(), 20.3) == [Connect(A)]
    assert state.step(Tick(), 99.0) == []
    assert state.step(Greeted(A, "pi", "boot"), 99.0) == [Join("pi", A)]


def test_a_device_may_come_back_with_another_boot():
    state = membership()
    joined(state)
    state.step(Dropped(A, "reboot"), 1.0)
    state.step(Tick(), 2.0)
    assert state.step(Greeted(A, "pi", "another"), 2.0) == [Join("pi", A)]


def test_backoff_grows_to_a_limit_and_jitter_spreads_it():
    for jitter, share in ((0.0, 0.5), (0.999, 1.0)):
        state = DeviceTable(lambda jitter=jitter: jitter)
        state.step(Sighted(A, "static"), 0.0)
        now, waits = 0.0, []
        for number in range(8):
            said = state.step(Dropped(A, "refused"), now)
            assert [each.code for each in said] == ["no_answer"][number:]
            waits.append(next_due_s(state) - now)
            now = next_due_s(state)
            assert state.step(Tick(), now) == [Connect(A)]
        assert waits[:3] == pytest.approx([share * FIRST_RETRY_S * f for f in (1, 2, 4)], rel=1e-2)
        assert waits[-1] == pytest.approx(share * LAST_RETRY_S, rel=1e-2)


def test_only_a_lasting_connection_starts_the_backoff_anew():
    def wait_after(lived_s):
        state = membership()
        state.step(Sighted(A, "static"), 0.0)
        for _ in range(4):
            state.step(Dropped(A, "refused"), 0.0)
            state.step(Tick(), 1000.0)
        state.step(Greeted(A, "pi", "boot"), 1000.0)
        state.step(Dropped(A, "reset"), 1000.0 + lived_s)
        return next_due_s(state) - 1000.0 - lived_s

    assert wait_after(STABLE_S) == FIRST_RETRY_S / 2
    assert wait_after(STABLE_S - 1) == FIRST_RETRY_S / 2 * 16


def test_an_announcement_ends_waiting_but_does_not_hammer():
    state = membership()
    state.step(Sighted(A, "mdns"), 0.0)
    assert state.step(Dropped(A, "refused"), 0.0) == []
    assert state.step(Sighted(A, "mdns"), 0.1) == []
    assert state.step(Sighted(A, "mdns"), FIRST_RETRY_S) == [Connect(A)]
    assert state.step(Sighted(A, "mdns"), 9.0) == []


def test_the_strongest_source_is_kept():
    state = membership()
    joined(state, source="mdns")
    assert not state.is_host("pi")
    state.step(Sighted(A, "host"), 1.0)
    state.step(Sighted(A, "mdns"), 1.0)
    assert state.is_host("pi")
    assert state.peers[0].source == "host"


def test_device_at_two_addresses_is_used_once_and_falls_over():
    state = membership()
    joined(state)
    state.step(Sighted(B, "mdns"), 1.0)
    assert state.step(Greeted(B, "pi", "boot"), 1.0) == [Close(B)]
    assert state_of(state, B) is PeerState.ALIAS
    assert state.step(Tick(), 500.0) == []
    assert state.step(Dropped(A, "cable"), 501.0) == [Leave("pi", A, "cable"), Connect(B)]
    assert state.step(Greeted(B, "pi", "boot"), 501.1) == [Join("pi", B)]


def test_a_copied_id_is_named_and_the_first_device_kept():
    state = membership()
    joined(state)
    state.step(Sighted(B, "static"), 1.0)
    close, problem = state.step(Greeted(B, "pi", "other"), 1.0)
    assert close == Close(B)
    assert problem.code == "duplicate_id"
    assert A in problem.cause
    assert B in problem.cause
    assert "Delete the copied identity" in problem.cure
    assert state.ready == {"pi": A}
    # Tried again, but not told again; once the first one is gone, it is welcome.
    assert state.step(Tick(), 1.0 + REFUSED_RETRY_S) == [Connect(B)]
    assert state.step(Greeted(B, "pi", "other"), 20.0) == [Close(B)]
    assert state.step(Dropped(A, "off"), 21.0) == [Leave("pi", A, "off"), Connect(B)]
    assert state.step(Greeted(B, "pi", "other"), 21.0) == [Join("pi", B)]


def test_a_refused_version_is_told_once_and_noticed_when_it_is_mended():
    state = membership()
    state.step(Sighted(A, "static"), 0.0)
    denied = Denied(A, "speaks protocol 2, we speak 1", "Install one version")
    problem = AddressProblem(A, "denied", denied.cause, denied.cure)
    assert state.step(denied, 0.0) == [problem]
    assert state.peers[0].cure == denied.cure
    assert state.step(Tick(), REFUSED_RETRY_S - 1) == []
    assert state.step(Tick(), REFUSED_RETRY_S) == [Connect(A)]
    assert state.step(denied, 16.0) == []
    assert state.step(Sighted(A, "mdns"), 20.0) == [Connect(A)]
    assert state.step(Greeted(A, "pi", "boot"), 20.0) == [Join("pi", A)]
    assert state.peers[0].reason == ""


def test_more_devices_than_the_cap_are_left_out_until_one_goes():
    state = membership(max_devices=1)
    joined(state)
    state.step(Sighted(B, "static"), 0.0)
    close, problem = state.step(Greeted(B, "other", "boot"), 0.0)
    assert (close, problem.code) == (Close(B), "too_many_devices")
    state.step(Dropped(A, "off"), 1.0)
    assert Connect(B) in state.step(Tick(), 30.0)
    assert state.step(Greeted(B, "other", "boot"), 30.0) == [Join("other", B)]


def made_up(number):
    return f"10.1.{number // 256}.{number % 256}:1"


def test_in_a_flood_of_announcements_the_oldest_stranger_leaves():
    state = membership(max_strangers=2)
    joined(state)
    assert state.step(Sighted(made_up(0), "mdns"), 0.0) == [Connect(made_up(0))]
    assert state.step(Sighted(made_up(1), "mdns"), 0.0) == [Connect(made_up(1))]
    state.step(Dropped(made_up(1), "silent"), 0.0)
    problem, close, connect = state.step(Sighted(made_up(2), "mdns"), 0.0)
    assert problem.code == "too_many_addresses"
    assert (close, connect) == (Close(made_up(0)), Connect(made_up(2)))
    # It is told once; and who waits has no connection to close.
    assert state.step(Sighted(made_up(3), "mdns"), 0.0) == [Connect(made_up(3))]
    assert [peer.address for peer in state.peers] == [A, made_up(2), made_up(3)]
    assert state.turned_away == 2


def test_a_genuine_device_gets_in_during_a_flood_and_stays():
    state = membership(max_strangers=8)
    joined(state, source="mdns")
    for number in range(1000):
        state.step(Sighted(made_up(number), "mdns"), 0.0)
        if number == 500:
            assert state.step(Sighted(B, "mdns"), 0.0)[-1] == Connect(B)
            assert state.step(Greeted(B, "new", "boot"), 0.0) == [Join("new", B)]
    assert state.ready == {"pi": A, "new": B}
    # One that is away keeps its slot, and one that is listed gets one.
    state.step(Dropped(B, "off"), 1.0)
    for number in range(1000):
        state.step(Sighted(made_up(number), "mdns"), 1.0)
    assert state_of(state, B) is PeerState.WAITING
    assert state.step(Sighted(C, "static"), 1.0) == [Connect(C)]
    assert len(state.peers) == 8 + 3


def test_the_more_strangers_there_are_the_less_often_each_is_tried():
    state = membership(max_strangers=1000)
    for number in range(1000):
        state.step(Sighted(made_up(number), "mdns"), 0.0)
        state.step(Dropped(made_up(number), "silent"), 0.0)
    now, tried = 0.0, 0
    while now < 600.0:
        now += 1.0
        for action in state.step(Tick(), now):
            tried += 1
            state.step(Dropped(action.address, "silent"), now)
    assert tried < 10_000  # at most 16 a second; as often as others, they would be 200


def test_listed_addresses_push_out_none_that_is_listed():
    state = membership(max_addresses=2)
    joined(state, source="mdns")
    assert state.step(Sighted(B, "static"), 0.0) == [Connect(B)]
    (problem,) = state.step(Sighted(C, "static"), 0.0)
    assert problem.code == "too_many_addresses"
    state.step(Dropped(A, "off"), 0.0)
    assert state.step(Sighted(C, "static"), 0.0) == [Connect(C)]
    assert [peer.address for peer in state.peers] == [B, C]


def test_dead_announcements_are_forgotten_and_listed_addresses_are_not():
    state = membership()
    for address, source in ((A, "mdns"), (B, "static")):
        state.step(Sighted(address, source), 0.0)
        state.step(Dropped(address, "silent"), 0.0)
    assert state.step(Tick(), FORGET_AFTER_S + 1) == [Connect(B)]
    assert [peer.address for peer in state.peers] == [B]


def test_a_withdrawn_address_is_left_and_its_alias_taken():
    state = membership()
    joined(state, source="host")
    state.step(Sighted(B, "mdns"), 0.0)
    state.step(Greeted(B, "pi", "boot"), 0.0)
    actions = state.step(Withdrawn(A), 1.0)
    assert actions == [Close(A), Leave("pi", A, "it was withdrawn"), Connect(B)]
    assert state.step(Withdrawn(B), 1.0) == [Close(B)]
    assert state.step(Withdrawn(B), 1.0) == []
    assert state.peers == ()


def test_late_news_of_a_closed_connection_changes_nothing():
    state = membership()
    assert state.step(Greeted(A, "pi", "boot"), 0.0) == [Close(A)]
    assert state.step(Dropped(A, "x"), 0.0) == []
    assert state.step(Denied(A, "x", "y"), 0.0) == []
    assert state.peers == ()


ADDRESSES = [f"10.0.0.{number}:1" for number in range(5)]
SOURCES = ["mdns", "static", "host"]
NEWS = st.one_of(
    st.builds(Sighted, st.sampled_from(ADDRESSES), st.sampled_from(SOURCES)),
    st.builds(
        Greeted, st.sampled_from(ADDRESSES), st.sampled_from("xyz"), st.sampled_from(["1", "2"])
    ),
    st.builds(Dropped, st.sampled_from(ADDRESSES), st.just("gone")),
    st.builds(Denied, st.sampled_from(ADDRESSES), st.just("version"), st.just("install")),
    st.builds(Withdrawn, st.sampled_from(ADDRESSES)),
    st.just(Tick()),
)


@given(
    st.lists(st.tuples(NEWS, st.floats(0, 40)), max_size=60), st.integers(1, 3), st.integers(1, 3)
)
def test_any_order_of_news_keeps_the_rules(news, max_devices, strangers):
    state = DeviceTable(
        lambda: 0.5, max_devices=max_devices, max_addresses=3, max_strangers=strangers
    )
    now, in_use, connected = 0.0, {}, set()
    for event, later in news:
        now += later
        if isinstance(event, Denied) and event.address in in_use.values():
            continue  # a connection in use is never denied: it drops
        if isinstance(event, Dropped | Denied):
            connected.discard(event.address)
        for action in state.step(event, now):
            match action:
                case Connect(address):
                    assert address not in connected, "two connections to one address"
                    connected.add(address)
                case Close(address):
                    connected.discard(address)
                case Join(device, address):
                    assert device not in in_use, "a device joined twice"
                    assert address in connected
                    in_use[device] = address
                case Leave(device, address):
                    assert in_use.pop(device) == address
        assert state.ready == in_use
        assert len(in_use) <= max_devices
        assert len(state.peers) <= 3 + strangers
        assert sum(peer.is_stranger for peer in state.peers) <= strangers
        for peer in state.peers:
            busy = peer.state in (PeerState.CONNECTING, PeerState.READY)
            assert busy == (peer.address in connected)
            assert (peer.state is PeerState.READY) == (peer.address in in_use.values())
            assert peer.retry_at_s <= now + REFUSED_RETRY_S
    # Whatever happened, everybody listed is tried again before long.
    actions = state.step(Tick(), now + REFUSED_RETRY_S)
    retried = {action.address for action in actions}
    for peer in state.peers:
        assert peer.state not in (PeerState.WAITING, PeerState.REFUSED)
        assert peer.address in retried | connected or peer.state is PeerState.ALIAS
