"""RTSP, from GStreamer's server: frames, logins, ends, silence."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import pytest
from PIL import Image

from imbrex.watch import stream
from imbrex.watch.stream import PASSWORD_VARIABLE, Stream
from models.digits.examples import examples
from models.vision.preprocess import decode_image
from protos.errors import BadRequest, Unavailable
from tests.cli.run_cli import imbrex_forked
from tests.serving.processes import serving, wait
from tests.watch.cameras import SIZE
from tests.watch.test_sources import LONG_S, next_frame, running

av = pytest.importorskip("av")

PYTHON = "/usr/bin/python3"
SERVER = Path(__file__).with_name("rtsp_server.py")
NEEDED = "import gi; gi.require_version('GstRtspServer', '1.0')"
RATE, FRAMES = 10, 12
SHADES = [20 * number for number in range(FRAMES)]


def installed() -> bool:
    try:
        ran = subprocess.run([PYTHON, "-c", NEEDED], capture_output=True, check=False)
    except OSError:
        return False
    return ran.returncode == 0


pytestmark = pytest.mark.skipif(not installed(), reason="there is no RTSP server: `make camera`")


def film(path: Path, codec: str, format: str, pictures: list[Image.Image]) -> None:
    with av.open(str(path), "w") as container:
        made = container.add_stream(codec, rate=RATE)
        made.width, made.height = pictures[0].size
        made.pix_fmt = format
        made.time_base = Fraction(1, RATE)
        if codec == "libx264":
            made.options = {"g": "4", "tune": "zerolatency", "crf": "12"}
        for picture in pictures:
            container.mux(made.encode(av.VideoFrame.from_image(picture)))
        container.mux(made.encode())


def films(folder: Path, pictures: list[Image.Image]) -> Path:
    film(folder / "h264.mp4", "libx264", "yuv420p", pictures)
    film(folder / "mjpeg.avi", "mjpeg", "yuvj420p", pictures)
    return folder


@contextmanager
def served(folder: Path, *login: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    process = subprocess.Popen(
        [PYTHON, str(SERVER), str(folder), *login], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield f"127.0.0.1:{process.stdout.readline().strip()}", process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pictures = [Image.new("RGB", SIZE, (shade,) * 3) for shade in SHADES]
    return films(tmp_path_factory.mktemp("films"), pictures)


@pytest.fixture(scope="module")
def camera(folder: Path) -> Iterator[str]:
    with served(folder) as (address, _):
        yield address


@pytest.mark.parametrize("path", ["h264", "mjpeg"])
def test_frames_come_in_order_and_a_stream_that_ends_is_opened_again(
    camera: str, path: str
) -> None:
    source = Stream(f"rtsp://{camera}/{path}", retry_s=0.01)
    with running(source) as found:
        frames = [next_frame(found) for _ in range(FRAMES + 3)]
    assert [each.number for each in frames] == list(range(FRAMES + 3))
    assert source.breaks >= 1
    pictures = [decode_image(each.read()) for each in frames]
    assert {each.size for each in pictures} == {SIZE}
    shades = [round(sum(each.convert("L").tobytes()) / (SIZE[0] * SIZE[1])) for each in pictures]
    first = min(range(FRAMES), key=lambda index: abs(SHADES[index] - shades[0]))
    until_end = shades[: FRAMES - first]
    assert until_end == pytest.approx(SHADES[first:], abs=6)
    assert shades[FRAMES - first] < until_end[-1], "it began again"


@pytest.mark.parametrize(
    ("path", "error", "cause"),
    [("nothing", Unavailable, "404"), ("sound", BadRequest, "has no video")],
)
def test_stream_without_pictures_says_so(
    camera: str, path: str, error: type[Exception], cause: str
) -> None:
    with running(Stream(f"rtsp://{camera}/{path}")) as found:
        got = found.get(timeout=LONG_S)
    assert isinstance(got, error), got
    assert cause in got.cause
    assert got.cure


def test_password_decides_who_may_look(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(folder, "me", "s:cret@") as (address, _):
        with running(Stream(f"rtsp://me:s%3Acret%40@{address}/h264")) as found:
            next_frame(found)
        for url in (f"rtsp://me:guessed@{address}/h264", f"rtsp://{address}/h264"):
            with running(Stream(url)) as found:
                got = found.get(timeout=LONG_S)
            assert isinstance(got, Unavailable)
            assert "401" in got.cause
            assert "guessed" not in got.cause
        monkeypatch.setenv(PASSWORD_VARIABLE, "s:cret@")
        with running(Stream(f"rtsp://me@{address}/h264")) as found:
            next_frame(found)


def test_a_camera_that_falls_silent_is_asked_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "READ_S", 0.5)
    monkeypatch.setattr(stream, "OPEN_S", 0.5)
    with served(folder) as (address, process):
        source = Stream(f"rtsp://{address}/h264", retry_s=0.01)
        with running(source) as found:
            next_frame(found)
            process.send_signal(signal.SIGSTOP)
            wait(lambda: source.breaks)
            before = found.qsize()
            process.send_signal(signal.SIGCONT)
            wait(lambda: found.qsize() > before)


@pytest.mark.slow
def test_imbrex_watch_reads_a_camera(tmp_path: Path) -> None:
    """From the camera's video to what is written on it."""
    sheet = examples()[0]
    films(tmp_path, [Image.open(sheet.path).convert("RGB")] * FRAMES)
    flags = ["--model", "digits"]
    with serving(tmp_path / "service", flags) as service, served(tmp_path) as (address, _):
        ran = imbrex_forked(
            "watch",
            f"rtsp://{address}/h264",
            "--url",
            service.url,
            "--frames",
            "3",
            "--at-once",
            "2",
        )
    assert ran.code == 0, ran.err
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert len(lines) == 3
    for each in lines:
        assert each["source"] == f"rtsp://{address}/h264"
        found = sorted(one["label"] for one in each["predictions"])
        assert found == sorted(truth.label for truth in sheet.truth)
    assert "3 answered" in ran.err
