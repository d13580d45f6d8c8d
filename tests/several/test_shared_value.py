"""What a shared state is: where it is stored, and the value that is stored there."""

import json

import pytest

from coordinator.several.nats_store import StoreAddress
from coordinator.several.shared_value import MOST_BYTES, Shared, dumped, parsed
from coordinator.trust.cluster_state import COORDINATORS, DEVICES, KEYS
from protos.errors import BadRequest, PeerViolation
from tests.trust.support import KITCHEN

A_DATE = "2026-01-01T00:00:00+00:00"
MEMBER = {"name": "kitchen", "since": A_DATE, "expires": A_DATE}


@pytest.mark.parametrize(
    "url",
    ["", "nats", "nats://", "nats://:4222", "http://a:1", "nats://a", "nats://a:b", "a:1,b:2"],
)
def test_a_place_that_is_none_is_named(url):
    with pytest.raises(BadRequest, match="does not say where"):
        StoreAddress(url).servers  # noqa: B018


def test_a_password_is_not_shown():
    place = StoreAddress("nats://me:secret@pi-1:4222,me:secret@pi-2:4222")
    assert place.servers == ["nats://me:secret@pi-1:4222", "nats://me:secret@pi-2:4222"]
    assert place.without_password == "nats://pi-1:4222,pi-2:4222"


@pytest.mark.parametrize(
    ("url", "secured"),
    [
        ("nats://127.0.0.1:4222,[::1]:4222", False),
        ("tls://127.0.0.1:4222", True),
        ("nats://127.0.0.1:4222,pi-2:4222", True),
    ],
)
def test_only_this_machine_is_spoken_to_in_plain_text(url, secured):
    assert StoreAddress(url).is_secured is secured


def test_a_value_is_read_as_it_was_written():
    shared = Shared("e", "f", {DEVICES: {KITCHEN: MEMBER}, "of/a later version": {"a": {"b": 1}}})
    assert parsed(dumped(shared)) == shared


@pytest.mark.parametrize(
    "documents",
    [
        3,
        {DEVICES: []},
        {DEVICES: {KITCHEN: 3}},
        {DEVICES: {KITCHEN: {}}},
        {DEVICES: {KITCHEN: MEMBER | {"expires": "tomorrow"}}},
        {DEVICES: {KITCHEN: MEMBER | {"expires": "2026-01-01T00:00:00"}}},
        {COORDINATORS: {"a": {"name": "a"}}},
        {KEYS: {"me": {"sha256": "0", "role": "king"}}},
        {KEYS: {"me": {"sha256": 0, "role": "admin"}}},
        {"cluster/generation": {"members": {"generation": "7"}}},
    ],
)
def test_documents_that_make_no_sense_are_refused(documents):
    value = {"format": 1, "epoch": "e", "authority": "f", "documents": documents}
    with pytest.raises(PeerViolation, match="not the state of a cluster"):
        parsed(json.dumps(value).encode())


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"garbage", b"\xff\xfe", b"[]", b"{}", b"[" * 200_000, b" " * (MOST_BYTES + 1)),
        json.dumps({"format": 2, "epoch": "e", "authority": "f", "documents": {}}).encode(),
        json.dumps({"format": 1, "epoch": 1, "authority": "f", "documents": {}}).encode(),
        json.dumps({"format": 1, "epoch": "e", "authority": "f"}).encode(),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(value):
    with pytest.raises(PeerViolation, match="not the state of a cluster"):
        parsed(value)
