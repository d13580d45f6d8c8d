"""`imbrex models pull` from a real server, good and bad."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from imbrex.cli.download import SPARE_BYTES, RemoteFile, download
from models.catalogue.installed import Store
from models.downloads import read_manifest
from protos.errors import BadConfiguration, NotFound, PeerViolation, Unavailable
from tests.cli.mirror import NAME, Mirror, serving, write_manifest
from tests.cli.run_cli import imbrex, refused
from tests.serving.camera import save_camera

CONTENT = bytes(range(256)) * 4000


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with serving(Mirror(CONTENT)) as running:
        yield running


def fetched(mirror: Mirror, folder: Path, content: bytes = CONTENT) -> tuple[bytes, list[int]]:
    """What came, and what was told of it."""
    told: list[int] = []
    digest = hashlib.sha256(content).hexdigest()
    wanted = RemoteFile(f"{mirror.url}/models/x", len(content), digest)
    download(wanted, folder / "x", told.append, wait=lambda _: None)
    return (folder / "x").read_bytes(), told


def test_a_whole_file_comes_and_is_told_of(mirror: Mirror, tmp_path: Path) -> None:
    body, told = fetched(mirror, tmp_path)
    assert body == CONTENT
    assert told[-1] == len(CONTENT)
    assert told == sorted(told)
    assert not (tmp_path / "x.part").exists()


def test_interrupted_download_resumes_where_it_stopped(mirror: Mirror, tmp_path: Path) -> None:
    mirror.breaks = [300_000, 0, 200_000]
    assert fetched(mirror, tmp_path)[0] == CONTENT
    assert mirror.ranges == ["", "bytes=300000-", "bytes=300000-", "bytes=500000-"]


def test_download_that_an_earlier_run_left_is_continued(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "x.part").write_bytes(CONTENT[:1000])
    assert fetched(mirror, tmp_path)[0] == CONTENT
    assert mirror.ranges == ["bytes=1000-"]


def test_a_server_without_ranges_sends_all_of_it_again(mirror: Mirror, tmp_path: Path) -> None:
    mirror.with_ranges, mirror.breaks = False, [300_000]
    assert fetched(mirror, tmp_path)[0] == CONTENT
    assert mirror.ranges == ["", "bytes=300000-"]


def test_a_busy_server_is_asked_again(mirror: Mirror, tmp_path: Path) -> None:
    mirror.refuses = 2
    assert fetched(mirror, tmp_path)[0] == CONTENT


def test_a_server_that_breaks_off_for_ever_is_given_up_and_what_came_stays(
    mirror: Mirror, tmp_path: Path
) -> None:
    mirror.breaks = [1000] + [0] * 20
    with pytest.raises(Unavailable, match="could not be downloaded") as caught:
        fetched(mirror, tmp_path)
    assert "continues where it stopped" in caught.value.cure
    assert (tmp_path / "x.part").read_bytes() == CONTENT[:1000]


@pytest.mark.parametrize("left", [CONTENT[1:1001], CONTENT + b"more"])
def test_a_part_of_something_else_never_becomes_the_model(
    mirror: Mirror, tmp_path: Path, left: bytes
) -> None:
    (tmp_path / "x.part").write_bytes(left)
    with suppress(PeerViolation):
        fetched(mirror, tmp_path)
        assert (tmp_path / "x").read_bytes() == CONTENT
    assert fetched(mirror, tmp_path)[0] == CONTENT  # at the latest the next try is right


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"!", CONTENT[:-1], CONTENT + b"!"])
def test_download_with_other_content_is_refused_and_removed(
    mirror: Mirror, tmp_path: Path, content: bytes
) -> None:
    mirror.content = content
    with pytest.raises(PeerViolation, match="another file"):
        fetched(mirror, tmp_path)
    assert not (tmp_path / "x").exists()


def test_missing_file_is_not_asked_for_again(mirror: Mirror, tmp_path: Path) -> None:
    mirror.missing = True
    with pytest.raises(NotFound, match="nothing at"):
        fetched(mirror, tmp_path)
    assert len(mirror.ranges) == 1


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "nonsense", "http://127.0.0.1:1/x"])
def test_a_base_url_that_leads_nowhere_is_named(tmp_path: Path, url: str) -> None:
    with pytest.raises((BadConfiguration, Unavailable)) as caught:
        download(RemoteFile(url, 9, "0" * 64), tmp_path / "x", lambda _: None, wait=lambda _: None)
    assert url in caught.value.cause
    assert caught.value.cure


def test_a_disk_without_room_is_refused_before_anything_comes(
    mirror: Mirror, tmp_path: Path
) -> None:
    free = shutil.disk_usage(tmp_path).free
    wanted = RemoteFile(f"{mirror.url}/x", free + SPARE_BYTES, "0" * 64)
    with pytest.raises(BadConfiguration, match="MB free"):
        download(wanted, tmp_path / "x", lambda _: None)
    assert mirror.ranges == []


LIMITED = """
import resource, signal, sys
from pathlib import Path
from imbrex.cli.download import RemoteFile, download
from protos.errors import BadConfiguration
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
url, size, digest, target = sys.argv[1:]
try:
    download(RemoteFile(url, int(size), digest), Path(target), lambda _: None)
except BadConfiguration as error:
    print(error.cause, error.cure)
"""


def test_a_disk_that_fills_up_on_the_way_keeps_what_came(mirror: Mirror, tmp_path: Path) -> None:
    """The kernel refuses to write more, as it does on a full disk."""
    digest = hashlib.sha256(CONTENT).hexdigest()
    arguments = [f"{mirror.url}/x", str(len(CONTENT)), digest, str(tmp_path / "x")]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert "cannot be written" in done.stdout, done
    assert "continues where it stopped" in done.stdout
    assert (tmp_path / "x.part").stat().st_size == 500_000
    assert fetched(mirror, tmp_path)[0] == CONTENT
    assert mirror.ranges[-1] == "bytes=500000-"


def test_pull_adds_a_model_once_and_says_where_it_is_from(store: str, tmp_path: Path) -> None:
    model = save_camera(tmp_path)
    manifest = write_manifest(tmp_path, model)
    with serving(Mirror(model.read_bytes(), breaks=[5000])) as mirror:
        flags = ["--manifest", manifest, "--base-url", mirror.url]
        told = imbrex("models", "pull", NAME, *flags, "--default", "--json").json()
        assert told == {"name": NAME, "version": 1, "task": "detection", "fetched": True}
        again = imbrex("models", "pull", NAME, *flags)
        assert "version 1: already installed" in again.out
        assert "licence Apache-2.0" in again.out
        assert len(mirror.ranges) == 2
    kept = Store(Path(store))
    assert kept.defaults() == {"detection": NAME}
    assert kept.installed()[NAME].latest.read_bytes() == model.read_bytes()
    assert list((Path(store) / ".incoming").iterdir()) == []


def test_download_that_is_no_model_or_unlike_its_sidecar_is_not_added(
    store: str, tmp_path: Path
) -> None:
    model = save_camera(tmp_path)
    for content in (b"no model", (tmp_path / "camera.onnx").read_bytes()[:-100]):
        manifest = write_manifest(tmp_path, model, content)
        with serving(Mirror(content)) as mirror:
            refused("models", "pull", NAME, "--manifest", manifest, "--base-url", mirror.url)
    assert not Store(Path(store)).installed()


@pytest.mark.parametrize("text", ["", "[]", '{"models": [{}]}', '{"models": [], "more": 1}'])
def test_a_broken_manifest_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(text)
    with pytest.raises(BadConfiguration, match=r"manifest\.json") as caught:
        read_manifest(path)
    assert caught.value.cure


def test_an_unknown_name_tells_what_there_is(store: str) -> None:
    ran = refused("models", "pull", "tinyyolov2")
    assert "Did you mean 'tinyyolov2-8'" in ran.err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small disk")
def test_pull_on_a_small_disk(store: str, tmp_path: Path) -> None:
    model = save_camera(tmp_path)
    manifest = write_manifest(tmp_path, model)
    script = 'mount -t tmpfs -o size=64k none "$IMBREX_MODELS" && exec "$@"'
    pull = [sys.executable, "-m", "imbrex", "models", "pull", NAME, "--manifest", str(manifest)]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *pull, "--base-url", "http://127.0.0.1:1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("no mount namespaces here")
    assert done.returncode == 1
    assert "0.07 MB free" in done.stderr
