"""Folders, cameras, and what waits between a source and a coordinator."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pytest
from PIL import Image

from imbrex.watch.folder import Folder
from imbrex.watch.run import source_of
from imbrex.watch.stream import Stream
from imbrex.watch.video_frames import Frame, FrameSource, Waiting
from models.vision.preprocess import decode_image
from protos.daemon.urls import shown
from protos.errors import BadRequest, ImbrexError, NotFound, Unavailable
from tests.watch.cameras import SIZE, camera, jpeg

LONG_S = 30


def frame(number: int) -> Frame:
    return Frame(number, f"frame {number}", 0.0, lambda: b"")


def test_the_newest_frame_is_taken_first_and_the_oldest_goes() -> None:
    waiting = Waiting(2)
    for number in range(5):
        waiting.put(frame(number))
    assert waiting.dropped == 3
    waiting.close()
    assert [each and each.number for each in (waiting.take(), waiting.take(), waiting.take())] == [
        4,
        3,
        None,
    ]


def test_closed_at_once_nothing_is_left() -> None:
    waiting = Waiting(2)
    waiting.put(frame(0))
    waiting.close(at_once=True)
    assert waiting.take() is None


@contextmanager
def running(source: FrameSource) -> Iterator[Queue[Frame | ImbrexError]]:
    """Frames as the source gives them, or the error that it ends with."""
    found: Queue[Frame | ImbrexError] = Queue()
    stopped = threading.Event()

    def run() -> None:
        try:
            source.run(found.put, stopped)
        except ImbrexError as error:
            found.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
    finally:
        stopped.set()
        thread.join(LONG_S)
        assert not thread.is_alive()


def next_frame(found: Queue[Frame | ImbrexError]) -> Frame:
    got = found.get(timeout=LONG_S)
    assert isinstance(got, Frame), got
    return got


def test_new_pictures_of_a_folder_come_when_they_are_complete(tmp_path: Path) -> None:
    (tmp_path / "old.jpg").write_bytes(jpeg(1))
    source = Folder(tmp_path)
    with running(source) as found:
        (tmp_path / "notes.txt").write_text("no picture")
        (tmp_path / "empty.png").touch()
        (tmp_path / "new.jpg").write_bytes(jpeg(2))
        first = next_frame(found)
        assert (first.name, first.number, first.read()) == ("new.jpg", 0, jpeg(2))
        (tmp_path / "new.jpg").write_bytes(jpeg(200))  # overwritten: it is another picture
        assert next_frame(found).read() == jpeg(200)
        assert found.empty()


def test_pictures_that_are_there_already_come_oldest_first(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(jpeg(number))
        os.utime(path, (1000 + number, 1000 + number))
    with running(Folder(tmp_path, existing=True)) as found:
        assert [next_frame(found).name for _ in range(3)] == ["0.jpg", "1.jpg", "2.jpg"]


def test_a_folder_that_is_not_there_and_a_picture_that_went(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="none"):
        Folder(tmp_path / "none")
    (tmp_path / "short").mkdir()
    with running(Folder(tmp_path / "short")) as found:
        (tmp_path / "short").rmdir()
        assert isinstance(found.get(timeout=LONG_S), NotFound)
    (tmp_path / "gone.jpg").write_bytes(jpeg(1))
    with running(Folder(tmp_path, existing=True)) as found:
        gone = next_frame(found)
        (tmp_path / "gone.jpg").unlink()
        with pytest.raises(BadRequest, match=r"gone\.jpg"):
            gone.read()


def test_source_that_is_neither_folder_nor_stream_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.jpg").write_bytes(jpeg(1))
    with pytest.raises(BadRequest, match="is a file"):
        source_of(str(tmp_path / "one.jpg"), existing=False)
    assert isinstance(source_of(str(tmp_path), existing=False), Folder)
    assert isinstance(source_of("rtsp://yard/1", existing=False), Stream)


def test_no_password_of_a_stream_is_told() -> None:
    with running(Stream("http://me:secret@127.0.0.1:1/mjpg")) as found:
        error = found.get(timeout=LONG_S)
    assert isinstance(error, Unavailable)
    assert "secret" not in str(error) + error.cause


def test_pictures_of_a_camera_are_passed_on_as_they_came() -> None:
    with camera() as yard, running(Stream(yard.url)) as found:
        for _ in range(8):
            yard.more.release()
        pictures = [decode_image(next_frame(found).read()) for _ in range(4)]
        yard.closing.set()
        assert {each.size for each in pictures} == {SIZE}
        shades = [each.getpixel((5, 5)) for each in pictures]
        assert shades == sorted(shades)
        assert len(set(shades)) == 4


def test_a_stream_that_breaks_is_opened_again() -> None:
    source = Stream("", retry_s=0.01)
    with camera(breaks=6) as yard:
        source.url = yard.url
        with running(source) as found:
            numbers = []
            while yard.opened < 3 or len(numbers) < 12:
                yard.more.release()
                if not found.empty():
                    numbers.append(next_frame(found).number)
        assert numbers == list(range(len(numbers)))
        assert source.breaks >= 2


@pytest.mark.parametrize("path", ["/nothing", ""])
def test_a_stream_that_cannot_be_opened_says_so(path: str) -> None:
    with camera() as yard:
        base = yard.url.removesuffix("/mjpg")
        url = base + path if path else "http://127.0.0.1:1/mjpg"
        with running(Stream(url)) as found:
            error = found.get(timeout=LONG_S)
    assert isinstance(error, Unavailable)
    assert "http://127.0.0.1 cannot be opened" in error.cause
    assert error.cure


def test_codecs_other_than_mjpeg_are_decoded(tmp_path: Path) -> None:
    """A file of MPEG-4 video takes the way of every codec that is not MJPEG."""
    av = pytest.importorskip("av")
    path = tmp_path / "film.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height = SIZE
        for shade in (10, 100, 250):
            picture = Image.new("RGB", SIZE, (shade,) * 3)
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode())
    with running(Stream(path.as_uri(), retry_s=60)) as found:
        shades = [decode_image(next_frame(found).read()).getpixel((5, 5)) for _ in range(3)]
    assert [round(shade[0] / 10) for shade in shades if isinstance(shade, tuple)] == [1, 10, 25]


# Every part of a URL, and every character that ends a part where somebody did not quote it.
SECRETS = [
    "rtsp://{}:{}@yard/{}?{}#{}",
    "rtsp://{}:{}/{}@yard/x",
    "rtsp://{}:{}?{}@yard/x",
    "rtsp://{}:{}#{}@yard/x",
    "rtsp://{}:{}@{}@yard/x",
    "rtsp://{}:{}@{}/{}@yard/x",
    "rtsp://{}:{}@{}?a={}@yard/x",
    "rtsp://{}:12/{}@yard/x",
    "rtsp://{}:12?{}@yard/x",
    "rtsp://{}/{}@yard/x",
    "rtsp://yard/user={}_password={}_channel=1",
    "http://yard/a.cgi?user={}&password={}@{}",
    "http://yard.local/a.cgi?user={}&password={}@{}",
    "http://yard/a?{}/{}#{}",
    "http://[{}:{}@yard/x",
    "http://{}:{}[@yard/x",
    "http://{}:\N{DOUBLE QUESTION MARK}{}@yard/x",
    "http:\\\\{}:{}@yard/x",
    "{}:{}@yard/x",
    "{}:{}@yard/?x=://",
    "yard/?user={}&password={}",
]
SECRET = [f"zq{number}secret" for number in range(5)]


@pytest.mark.parametrize("form", SECRETS)
def test_no_part_of_a_url_is_told(form: str) -> None:
    url = form.format(*SECRET)
    texts = []
    try:
        source = source_of(url, existing=False)
        texts += [source.name, repr(shown(url)), repr(shown(url, port=True))]
    except ImbrexError as error:
        texts += [error.cause, error.cure]
    for text in texts:
        assert "zq" not in text
        assert "secret" not in text


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("rtsp://me:a@yard.local:554/1", "rtsp://yard.local"),
        ("http://yard.local/a.cgi?user=me&password=p@ss", "http://yard.local"),
        ("rtsp://me:p@ss@yard/1", "rtsp://yard"),
        ("http://[fe80::1%25eth0]/a", "http://[fe80::1%25eth0]"),
        ("http://büro.local/a", "http://büro.local"),
        ("http://yard/a@b", "http://..."),  # it may be a password with a / in it
    ],
)
def test_scheme_and_host_are_told_and_what_the_user_calls_it(url: str, name: str) -> None:
    assert source_of(url, existing=False).name == name
    assert source_of(url, existing=False, called="Hof").name == f"{name} (Hof)"
