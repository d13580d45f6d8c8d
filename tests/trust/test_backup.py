"""A cluster's trust as one file, there and back."""

import io
import stat
import tarfile

import pytest

from coordinator.serving.common.keys import Keys, Role
from coordinator.trust.backup import backup, restore
from coordinator.trust.cluster_state import ClusterState
from coordinator.trust.trust import Trust
from protos.errors import BadConfiguration, BadRequest
from tests.cli.run_cli import imbrex
from tests.trust.support import KITCHEN, admit, make_trust


@pytest.fixture
def file(tmp_path):
    """A backup of a cluster with a member and a key."""
    state = tmp_path / "before"
    admit(make_trust(state).certified, KITCHEN)
    Keys(ClusterState(state)).add("me", Role.ADMIN)
    (state / "worker").mkdir()
    (state / "worker" / "id").write_text("x")
    (state / "worker" / "blobs").mkdir()
    (state / "worker" / "blobs" / "large").write_bytes(bytes(1000))
    backup(state, tmp_path / "backup.tgz")
    return tmp_path / "backup.tgz"


def test_the_same_cluster_comes_back(file, tmp_path):
    old, new = tmp_path / "before", tmp_path / "after"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    names = restore(file, new)
    assert "worker/blobs/large" not in names
    before, after = Trust.load(old).certified, Trust.load(new).certified
    assert after.authority.fingerprint == before.authority.fingerprint
    assert after.roster.members() == before.roster.members()
    assert [key.name for key in Keys(ClusterState(new)).all()] == ["me"]
    kept = [path for path in new.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert stat.S_IMODE((new / "cluster").stat().st_mode) == 0o700


def test_a_cluster_that_is_there_is_not_overwritten(file, tmp_path):
    with pytest.raises(BadConfiguration, match="already holds a cluster's authority"):
        restore(file, tmp_path / "before")


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "/etc/passwd", "cluster/../../x.pem", "cluster/../x.pem", "cluster/x"],
)
def test_a_file_that_names_other_places_is_refused_whole(tmp_path, name):
    packed = tmp_path / "evil.tgz"
    with tarfile.open(packed, "w:gz") as archive:
        for each in ("cluster/authority.pem", name):
            member = tarfile.TarInfo(each)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(BadRequest, match="not a backup of a cluster"):
        restore(packed, tmp_path / "after")
    assert not (tmp_path / "after").exists()


def test_a_link_is_refused(tmp_path):
    packed = tmp_path / "evil.tgz"
    with tarfile.open(packed, "w:gz") as archive:
        member = tarfile.TarInfo("cluster/authority.pem")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/shadow"
        archive.addfile(member)
    with pytest.raises(BadRequest, match="not a backup of a cluster"):
        restore(packed, tmp_path / "after")


def test_nonsense_is_refused(tmp_path):
    packed = tmp_path / "nonsense"
    packed.write_bytes(b"nonsense")
    with pytest.raises(BadRequest, match="not a backup of a cluster"):
        restore(packed, tmp_path / "after")


def test_the_commands(file, tmp_path):
    again = tmp_path / "again.tgz"
    made = imbrex("cluster", "backup", again, "--state-dir", tmp_path / "before", "--json").json()
    assert "cluster/authority.key.pem" in made["files"]
    after = tmp_path / "after"
    put = imbrex("cluster", "restore", again, "--state-dir", after, "--json").json()
    assert put == made
    nowhere = imbrex("cluster", "backup", again, "--state-dir", tmp_path / "nowhere")
    assert (nowhere.code, "no cluster authority" in nowhere.err) == (1, True)
