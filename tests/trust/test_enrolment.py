"""Joining by a token: real enrolment over the network, by real workers and the command line."""

import asyncio
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from coordinator.trust.enrolment_server import Enrolment
from coordinator.trust.trust import Trust
from protos.errors import BadConfiguration, BadRequest, PeerViolation, Unavailable
from protos.rpc.channels import Caller
from protos.rpc.enrolment import enrol
from protos.rpc.worker_client import WorkerClient
from protos.trust.identity import device_name, fingerprint, now_utc
from protos.trust.invitation import Invitation
from protos.wire.versions import Spoken
from tests.cli.run_cli import imbrex
from tests.trust.support import DAY, HALL, KITCHEN, admit, identity, make_trust
from tests.worker.support import environment, in_process
from worker.trust.certificate import IDENTITY_FILE, credentials_in

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def address(trust):
    """Where the cluster enrols."""
    enrolment = Enrolment(trust.certified, "127.0.0.1", 0)
    port = await enrolment.start()
    yield f"127.0.0.1:{port}"
    await enrolment.stop()


async def test_a_token_makes_a_member_that_the_coordinator_can_use(trust, address, tmp_path):
    token = trust.certified.invite(address).token
    async with in_process(tmp_path / "kitchen", join=token, name="kitchen") as running:
        assert set(trust.members()) == {running.id}
        member = trust.certified.roster.members()[running.id]
        assert member.name == "kitchen"
        async with WorkerClient(running.address, trust.caller, running.id) as client:
            assert (await client.hello("1")).facts.id == running.id
    file = tmp_path / "kitchen" / IDENTITY_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    # The same settings at the next start: the token is not needed again.
    async with in_process(tmp_path / "kitchen", join=token) as again:
        assert again.id == running.id


async def test_a_replayed_token_is_refused_with_a_log_line(trust, address):
    invitation = trust.certified.invite(address)
    await enrol(invitation, KITCHEN, "kitchen")
    refusal = pytest.raises(Unavailable, match=r"used before.*cluster invite")
    with capture_logs() as logs, refusal:
        await enrol(invitation, HALL, "thief")
    (line,) = (each for each in logs if each["event"] == "device refused")
    assert line["name"] == "thief"
    assert invitation.secret not in str(logs)
    assert set(trust.members()) == {KITCHEN}


async def test_the_secret_does_not_leave_for_somebody_else(trust, address, tmp_path):
    """Another cluster answers at the address: the device finds out by the fingerprint."""
    theirs = make_trust(tmp_path / "strangers").certified.invite(address)
    asked = []

    def admit(*what):
        asked.append(what)

    trust.certified.admit = admit
    with pytest.raises(BadConfiguration, match="belongs to another cluster"):
        await enrol(theirs, KITCHEN, "kitchen")
    assert not asked


async def test_an_authority_that_did_not_sign_who_answers_is_not_enough(trust, address, tmp_path):
    """Somebody shows our authority's certificate, which is no secret, over a server of theirs."""
    strangers = make_trust(tmp_path / "strangers").certified
    asked = []
    strangers.admit = lambda *what: asked.append(what)
    strangers.authority.certificate_pem = trust.certified.authority.certificate_pem
    enrolment = Enrolment(strangers, "127.0.0.1", 0)
    port = await enrolment.start()
    try:
        with pytest.raises(BadConfiguration, match="certificate is of another cluster"):
            await enrol(trust.certified.invite(f"127.0.0.1:{port}"), KITCHEN, "kitchen")
    finally:
        await enrolment.stop()
    assert not asked


async def test_a_workers_certificate_is_not_the_coordinators(trust, tmp_path):
    """A member that is not ours any more cannot enrol others in our name."""
    trust.certified.credentials.replace(identity(trust.certified, HALL))
    enrolment = Enrolment(trust.certified, "127.0.0.1", 0)
    port = await enrolment.start()
    try:
        with pytest.raises(BadConfiguration, match="another device answers"):
            await enrol(trust.certified.invite(f"127.0.0.1:{port}"), KITCHEN, "kitchen")
    finally:
        await enrolment.stop()


@pytest.mark.parametrize("device", ["", "host", "a" * 15, "A" * 16, "../../../etc/pass"])
async def test_a_strange_device_id_is_refused(trust, address, device):
    with pytest.raises(BadRequest, match="id is not 16 hex"):
        await enrol(trust.certified.invite(address), device, "kitchen")


async def test_enrolment_by_another_protocol_is_named(trust, address, monkeypatch):
    spoken = SimpleNamespace(SPOKEN=Spoken(99))
    monkeypatch.setattr("coordinator.trust.enrolment_server.versions", spoken)
    with pytest.raises(PeerViolation, match="this coordinator 98 and 99"):
        await enrol(trust.certified.invite(address), KITCHEN, "kitchen")


async def test_a_name_with_control_characters_is_harmless(trust, address):
    await enrol(trust.certified.invite(address), KITCHEN, "\x1b[2Jkit\nchen" + 99 * "n")
    assert trust.certified.roster.members()[KITCHEN].name == ("[2Jkitchen" + 99 * "n")[:60]


async def test_enrolment_at_an_empty_address_names_it(trust):
    with pytest.raises(Unavailable, match=r"nobody enrols devices at 127\.0\.0\.1:1 "):
        await enrol(trust.certified.invite("127.0.0.1:1"), KITCHEN, "kitchen")


async def test_a_new_token_enrols_a_removed_device_again(trust, address, tmp_path):
    folder = tmp_path / "kitchen"
    folder.mkdir()
    first = trust.certified.invite(address).token
    await credentials_in(folder, first, KITCHEN, "kitchen")
    trust.certified.roster.remove(KITCHEN)
    await credentials_in(folder, first, KITCHEN, "kitchen")
    assert trust.members() == frozenset()
    second = trust.certified.invite(address).token
    credentials = await credentials_in(folder, second, KITCHEN, "kitchen")
    assert trust.members() == {KITCHEN}
    assert device_name(KITCHEN) in credentials.identity.names


async def test_an_invited_device_cannot_become_another_member(trust, address):
    await enrol(trust.certified.invite(address), KITCHEN, "kitchen")
    with pytest.raises(BadRequest, match=r"is already a member, kitchen.*remove"):
        await enrol(trust.certified.invite(address), KITCHEN, "thief")
    assert trust.certified.roster.members()[KITCHEN].name == "kitchen"


async def test_a_member_whose_certificate_has_ended_may_join_again(trust, address):
    admit(trust.certified, KITCHEN, expires=now_utc() - DAY)
    await enrol(trust.certified.invite(address), KITCHEN, "kitchen")
    assert trust.certified.roster.members()[KITCHEN].expires > now_utc()


async def test_a_plain_caller_gets_nothing_from_the_enrolment_port(address):
    async with WorkerClient(address, Caller("host")) as client:
        with pytest.raises(Unavailable):
            await client.hello("1")


# ---------------------------------------------------------------- the command line


def test_the_cluster_commands(tmp_path):
    state = ("--state-dir", str(tmp_path))
    before = imbrex("cluster", "invite", *state)
    assert (before.code, "no cluster authority" in before.err) == (1, True)
    made = imbrex("cluster", "init", *state, "--json").json()
    assert made["changed"]
    assert imbrex("cluster", "init", *state, "--json").json() == made | {"changed": False}
    invited = imbrex("cluster", "invite", *state, "--address", "fd00::7")
    invitation = Invitation.parse(invited.out)
    assert invitation.address == "[fd00::7]:8462"
    assert invitation.fingerprint == made["fingerprint"]
    assert fingerprint((tmp_path / "cluster" / "authority.pem").read_bytes()) == made["fingerprint"]
    named = imbrex("cluster", "invite", *state, "--address", "pi.local:9", "--json").json()
    assert named["token"].startswith("pi.local:9/")
    assert imbrex("cluster", "list", *state, "--json").json() == {
        "devices": [],
        "coordinators": [],
    }
    missing = imbrex("cluster", "remove", "cellar", *state)
    assert (missing.code, "no members are called 'cellar'" in missing.err) == (1, True)


async def test_join_only_reads_the_token_from_standard_input_and_says_nothing_of_it(
    trust, address, tmp_path
):
    token = trust.certified.invite(address).token
    arguments = ("worker", "--join", "-", "--join-only", "--name", "hall")
    process = await run_worker(arguments, tmp_path / "hall", token)
    said = process.stdout + process.stderr
    assert process.returncode == 0, said
    assert "enrolled" in said
    assert Invitation.parse(token).secret not in said
    assert [each.name for each in trust.certified.roster.members().values()] == ["hall"]
    files = [file for file in (tmp_path / "hall").iterdir() if file.name != "lock"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    secret = (tmp_path / "hall" / IDENTITY_FILE).read_text()
    assert not set(re.findall(r"[\w+/=]{64}", secret)) & set(said.split())
    again = await run_worker(arguments, tmp_path / "other", token)
    assert again.returncode == 1
    assert "used before" in again.stderr
    assert Invitation.parse(token).secret not in again.stderr


async def run_worker(arguments, state_dir, token):
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "imbrex", *arguments],
        cwd=ROOT,
        env=environment(state_dir) | {"PYTHONUNBUFFERED": "1"},
        input=token + "\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_root_leaves_files_that_the_daemon_can_read(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can write files for another user")
    os.chown(tmp_path, 12345, 12345)
    trust = make_trust(tmp_path)
    trust.certified.invite("127.0.0.1:1")
    Trust.load(tmp_path)
    owners = {each.stat().st_uid for each in tmp_path.rglob("*")}
    assert owners == {12345}
