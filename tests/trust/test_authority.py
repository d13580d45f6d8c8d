"""The authority, its invitations and its list of members, on disk."""

import json
import re
import shutil
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from coordinator.trust.authority import Authority
from coordinator.trust.cluster_state import FOLDER, INVITATIONS, ClusterState
from coordinator.trust.roster import MAX_OPEN, NotInvited, Roster, invite, use_up
from coordinator.trust.trust import Trust
from protos.errors import BadConfiguration, BadRequest, Infeasible, NotFound, PeerViolation
from protos.trust.identity import (
    certified,
    device_name,
    names_in,
    new_key,
    now_utc,
    signing_request,
)
from protos.trust.invitation import Invitation
from tests.trust.support import DAY, HALL, KITCHEN, admit, identity, make_trust

BOOKWORM = "2023-06-10"


@pytest.fixture
def trust(tmp_path):
    return make_trust(tmp_path)


def test_every_file_with_a_secret_is_its_owners_alone(trust, tmp_path):
    trust.certified.invite("127.0.0.1:1")
    admit(trust.certified, KITCHEN)
    folder = tmp_path / FOLDER
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert len(files) >= 5
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


@pytest.mark.parametrize("file", ["authority.key.pem", "coordinator.pem"])
def test_a_key_that_others_may_read_is_refused(trust, tmp_path, file):
    (tmp_path / FOLDER / file).chmod(0o640)
    with pytest.raises(BadConfiguration, match=f"{file} holds a private key.*chmod 600"):
        Trust.load(tmp_path)


def test_a_second_authority_is_refused(trust, tmp_path):
    with pytest.raises(BadConfiguration, match="holds a cluster's authority"):
        Authority.make(tmp_path, now_utc())


def test_a_damaged_authority_is_named(trust, tmp_path):
    (tmp_path / FOLDER / "authority.pem").write_text("nonsense")
    with pytest.raises(BadConfiguration, match="cannot be used"):
        Trust.load(tmp_path)


def half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


HARMS = [half, Path.unlink, lambda path: path.write_bytes(b"")]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("file", ["authority.key.pem", "authority.pem"])
def test_lost_or_damaged_authority_is_refused_at_start(trust, tmp_path, file, harm):
    harm(tmp_path / FOLDER / file)
    with pytest.raises(BadConfiguration) as refused:
        Trust.load(tmp_path)
    assert str(tmp_path / FOLDER / file) in refused.value.cause
    assert "imbrex cluster restore" in refused.value.cure
    assert "imbrex cluster init --replace" in refused.value.cure


def test_nor_when_the_whole_folder_is_gone(trust, tmp_path):
    shutil.rmtree(tmp_path / FOLDER)
    with pytest.raises(BadConfiguration, match=r"authority\.key\.pem: it is missing"):
        Trust.load(tmp_path)


def test_list_of_members_alone_proves_a_lost_authority(trust, tmp_path):
    """Only the list of members is left, and no mark outside of the folder."""
    admit(trust.certified, KITCHEN)
    (tmp_path / "cluster.authority").unlink()
    for file in (tmp_path / FOLDER).glob("*.pem"):
        file.unlink()
    with pytest.raises(BadConfiguration, match=r"authority\.key\.pem: it is missing"):
        Trust.load(tmp_path)


def test_a_key_of_another_certificate_is_named(trust, tmp_path):
    (tmp_path / FOLDER / "authority.key.pem").write_bytes(new_key())
    with pytest.raises(BadConfiguration, match="it is not the key of"):
        Trust.load(tmp_path)


def test_a_new_one_takes_its_place_when_somebody_says_so(trust, tmp_path):
    half(tmp_path / FOLDER / "authority.key.pem")
    before = trust.certified.authority
    made, aside = Authority.replace(tmp_path, now_utc())
    assert made.fingerprint != before.fingerprint
    assert (aside / "authority.pem").read_bytes() == before.certificate_pem
    assert Trust.load(tmp_path).certified.authority.fingerprint == made.fingerprint
    assert not Trust.load(tmp_path).members()


def test_a_daemon_without_its_authority_does_not_start(trust, tmp_path):
    half(tmp_path / FOLDER / "authority.key.pem")
    command = [sys.executable, "-m", "imbrex", "coordinator", "--no-mdns", "--port", "0"]
    ended = subprocess.run(
        [*command, "--no-host-computes", "--state-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "authority.key.pem" in ended.stderr
    assert "--replace" in ended.stderr
    assert not (tmp_path / "ready.json").exists()


def test_certificates_are_valid_on_a_board_without_a_clock(trust):
    own = identity(trust.certified, KITCHEN)
    for pem in (own.certificate_pem, own.authority_pem):
        begins = x509.load_pem_x509_certificate(pem).not_valid_before_utc
        assert f"{begins:%Y-%m-%d}" == BOOKWORM


def test_the_authority_decides_the_names_and_not_who_asks(trust):
    sly = signing_request(new_key(), "coordinator.imbrex.internal")
    signed = trust.certified.authority.sign(sly, HALL, now_utc())
    assert names_in(signed) == ("worker.imbrex.internal", f"{HALL}.worker.imbrex.internal")
    constraints = x509.load_pem_x509_certificate(signed).extensions.get_extension_for_class(
        x509.BasicConstraints
    )
    assert not constraints.value.ca


def test_a_request_of_another_kind_is_refused(trust):
    key = rsa.generate_private_key(65537, 2048)
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    pem = request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    for bad in (pem, b"nonsense"):
        with pytest.raises(BadRequest, match="signing request"):
            trust.certified.authority.sign(bad, HALL, now_utc())


def test_a_certificate_for_another_key_name_or_cluster_is_not_taken(trust, tmp_path):
    other = make_trust(tmp_path / "other").certified.authority
    key, own = new_key(), trust.certified.authority
    signed = own.sign(signing_request(key, "x"), KITCHEN, now_utc())
    name = device_name(KITCHEN)
    assert certified(key, signed, own.certificate_pem, name).names[-1] == name
    for key_pem, authority, wanted in (
        (new_key(), own, name),
        (key, other, name),
        (key, own, device_name(HALL)),
    ):
        with pytest.raises(PeerViolation, match="certificate that came"):
            certified(key_pem, signed, authority.certificate_pem, wanted)


# ---------------------------------------------------------------- invitations


def take(state_dir, secret, now):
    ClusterState(state_dir).change((INVITATIONS,), lambda entries: use_up(entries, secret, now))


def invited(state_dir, *args):
    return ClusterState(state_dir).change((INVITATIONS,), lambda entries: invite(entries, *args))


def test_an_invitation_admits_once(trust, tmp_path):
    now = now_utc()
    secret = invited(tmp_path, now)
    take(tmp_path, secret, now)
    with pytest.raises(NotInvited, match="used before"):
        take(tmp_path, secret, now)


def test_an_invitation_expires(trust, tmp_path):
    now = now_utc()
    secret = invited(tmp_path, now, timedelta(minutes=5))
    with pytest.raises(NotInvited, match="expired"):
        take(tmp_path, secret, now + timedelta(minutes=6))


def test_only_the_hash_is_kept(trust, tmp_path):
    secret = invited(tmp_path, now_utc())
    kept = "".join(file.read_text() for file in (tmp_path / FOLDER).glob("*.json"))
    assert "expires" in kept
    assert secret not in kept


def test_a_secret_that_is_a_kept_hash_admits_nobody(trust, tmp_path):
    invited(tmp_path, now_utc())
    (known,) = json.loads((tmp_path / FOLDER / "invitations.json").read_text())
    with pytest.raises(NotInvited):
        take(tmp_path, known, now_utc())


def test_open_invitations_are_capped_and_expired_ones_make_room(trust, tmp_path):
    now = now_utc()
    entries = {f"{n:064x}": {"expires": (now + DAY).isoformat()} for n in range(MAX_OPEN)}
    (tmp_path / FOLDER / "invitations.json").write_text(json.dumps(entries))
    with pytest.raises(Infeasible, match="invitations are open"):
        invited(tmp_path, now)
    invited(tmp_path, now + 2 * DAY)


def test_a_token_round_trips_and_does_not_show_its_secret(trust):
    invitation = trust.certified.invite("[fd00::1]:8462")
    assert Invitation.parse(f" {invitation.token}\n") == invitation
    assert invitation.secret not in repr(invitation)


@pytest.mark.parametrize(
    "token", ["", "kitchen", "host/ff/s", "1.2.3.4:8462/" + 64 * "g" + "/" + 32 * "s"]
)
def test_an_incomplete_token_is_named_and_not_repeated(token):
    with pytest.raises(BadRequest, match="not complete") as caught:
        Invitation.parse(token)
    assert not token or token not in str(caught.value)


# ---------------------------------------------------------------- members


def test_the_list_is_followed_when_another_process_changes_it(trust, tmp_path):
    roster = trust.certified.roster
    assert roster.members() == {}
    admit(make_certified_again(tmp_path), KITCHEN)
    assert set(roster.members()) == {KITCHEN}
    assert trust.members() == {KITCHEN}
    assert Roster(ClusterState(tmp_path)).remove("name-a").id == KITCHEN
    assert trust.members() == frozenset()


def make_certified_again(tmp_path):
    return Trust.load(tmp_path).certified


def test_removing_nobody_names_the_members(trust):
    admit(trust.certified, KITCHEN)
    with pytest.raises(NotFound, match=f"name-a \\({KITCHEN}\\)"):
        trust.certified.roster.remove("cellar")


def test_a_damaged_list_is_an_error_and_not_an_empty_list(trust, tmp_path):
    (tmp_path / FOLDER / "devices.json").write_text("[]")
    with pytest.raises(BadConfiguration, match=r"devices\.json cannot be used"):
        trust.members()


def test_the_coordinators_own_certificate_is_renewed_when_due(trust, monkeypatch):
    certified_ = trust.certified
    before = certified_.credentials.identity
    certified_.renew_own_if_due()
    assert certified_.credentials.identity is before
    monkeypatch.setattr("coordinator.trust.trust.now_utc", lambda: now_utc() + 300 * DAY)
    certified_.renew_own_if_due()
    assert certified_.credentials.identity.expires > before.expires + 200 * DAY


@pytest.mark.needs_room("coordinator/several")
def test_every_claim_of_the_document_has_its_test():
    root = Path(__file__).parents[2]
    named = set(re.findall(r"`(test_\w+)`", (root / "docs" / "security.md").read_text()))
    assert len(named) > 20
    sources = "".join(file.read_text() for file in (root / "tests").rglob("test_*.py"))
    assert {name for name in named if f"def {name}(" not in sources} == set()
