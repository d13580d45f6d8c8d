"""What a hostile camera, broker, folder or model server can do: waste its own connection."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from PIL import Image

from imbrex.cli import download as module
from imbrex.cli.download import RemoteFile, download
from imbrex.watch import folder as folder_module
from imbrex.watch.folder import Folder
from imbrex.watch.run import MOST_MEMORY_BYTES
from imbrex.watch.stream import Stream
from imbrex.watch.video_frames import Frame
from protos.errors import BadRequest, ImbrexError, PeerViolation, Unavailable

LONG_S = 30.0


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def film(path: Path, size: tuple[int, int], codec: str = "mpeg4", count: int = 12) -> None:
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height = size
        if codec == "png":
            stream.pix_fmt = "rgb24"
        for shade in range(count):
            picture = Image.new("RGB", size, (shade,) * 3)
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode())


def frames_of(url: str) -> tuple[int, ImbrexError | None]:
    """How many frames come until the stream ends for the first time."""
    seen, stopped, failed = [], threading.Event(), []

    def run() -> None:
        try:
            Stream(url, retry_s=LONG_S).run(seen.append, stopped)
        except ImbrexError as error:
            failed.append(error)

    stream = Stream(url)
    assert stream.breaks == 0
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(5.0)
    stopped.set()
    thread.join(LONG_S)
    assert not thread.is_alive()
    return len(seen), failed[0] if failed else None


def test_a_stream_leads_to_no_file_of_this_device(tmp_path: Path) -> None:
    public, private = tmp_path / "public", tmp_path / "private"
    public.mkdir()
    private.mkdir()
    film(private / "film.ts", (320, 240))
    film(public / "film.ts", (320, 240))
    head = "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n"
    (public / "own.m3u8").write_text(f"{head}film.ts\n#EXT-X-ENDLIST\n")
    private_film = (private / "film.ts").as_uri()
    (public / "file.m3u8").write_text(f"{head}{private_film}\n#EXT-X-ENDLIST\n")
    with serving(public) as url:
        count, _ = frames_of(f"{url}/own.m3u8")
        assert count > 0  # so a playlist of its own films is played
        count, error = frames_of(f"{url}/file.m3u8")
    assert (count, type(error)) == (0, Unavailable)


def test_a_frame_beyond_what_is_taken_is_not_decoded(tmp_path: Path) -> None:
    film(tmp_path / "large.mov", (6000, 4000), "png", count=2)
    film(tmp_path / "small.mov", (600, 400), "png", count=2)
    with serving(tmp_path) as url:
        assert frames_of(f"{url}/small.mov")[0] == 2
        assert frames_of(f"{url}/large.mov")[0] == 0


def test_a_file_that_is_no_picture_is_not_read_to_its_end(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(folder_module, "LARGEST_BYTES", 1000)
    (tmp_path / "a.jpg").write_bytes(bytes(1001))
    (tmp_path / "b.jpg").write_bytes(bytes(1000))
    frames: list[Frame] = []
    enough = threading.Event()

    def put(frame: Frame) -> None:
        frames.append(frame)
        if len(frames) == 2:
            enough.set()

    Folder(tmp_path, existing=True).run(put, enough)
    large, small = sorted(frames, key=lambda frame: frame.name)
    assert len(small.read()) == 1000
    with pytest.raises(BadRequest, match=r"a\.jpg has more than"):
        large.read()


@contextlib.contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """How many more bytes Python holds than at the start."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_broker_that_takes_nothing_fills_no_memory() -> None:
    """It lets the client in, and never reads again."""
    pytest.importorskip("paho.mqtt.client")
    from imbrex.watch.mqtt import MOST_QUEUED, Broker, Publisher

    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

        def broker() -> None:
            line, _ = listener.accept()
            with line:
                line.recv(4096)
                line.sendall(b"\x20\x02\x00\x00")  # CONNACK: accepted
                ended.wait(LONG_S)

        thread = threading.Thread(target=broker)
        thread.start()
        address = Broker("127.0.0.1", listener.getsockname()[1], "", "imbrex", tls=False)
        with Publisher(address, "yard", "m") as publisher, traced() as bytes_held:
            try:
                line = {"predictions": [], "text": "x" * 100_000}
                for _ in range(10 * MOST_QUEUED):
                    publisher(line)
                assert bytes_held() <= 2 * MOST_QUEUED * 100_000
            finally:
                ended.set()
                thread.join()


class Endless(http.server.BaseHTTPRequestHandler):
    """One picture of a motion JPEG stream, which never ends."""

    sent_mb = 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=x")
        self.end_headers()
        self.wfile.write(b"--x\r\nContent-Type: image/jpeg\r\nContent-Length: 2000000000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(2000):
                self.wfile.write(bytes(1 << 20))
                type(self).sent_mb += 1

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def test_a_picture_that_never_ends_fills_no_memory() -> None:
    pytest.importorskip("av")
    peak_bytes = 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        server.daemon_threads = True
        serving_it = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving_it.start()
        command = [sys.executable, "-m", "imbrex", "watch"]
        command += [f"http://127.0.0.1:{server.server_port}/a.mjpg", "--url", "http://127.0.0.1:9"]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as watching:
            deadline = time.monotonic() + LONG_S
            while watching.poll() is None and time.monotonic() < deadline:
                with contextlib.suppress(psutil.NoSuchProcess):
                    peak_bytes = max(peak_bytes, psutil.Process(watching.pid).memory_info().rss)
                if Endless.sent_mb >= 1000:
                    break
                time.sleep(0.01)
            watching.kill()
        server.shutdown()
        serving_it.join()
    assert Endless.sent_mb > 100
    # What it is before, and the room for stacks, which this uses, too.
    assert peak_bytes < MOST_MEMORY_BYTES + (400 << 20)


def test_a_brokers_huge_packet_is_not_taken() -> None:
    """It announces 256 MB, and begins to send them."""
    pytest.importorskip("paho.mqtt.client")
    from imbrex.watch.mqtt import Broker, Publisher

    hung_up = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def broker() -> None:
            line, _ = listener.accept()
            with line, contextlib.suppress(ConnectionError, BrokenPipeError):
                line.recv(4096)
                line.sendall(b"\x20\x02\x00\x00")  # CONNACK: accepted
                line.sendall(b"\x30\xff\xff\xff\x7f")  # PUBLISH of the largest size
                line.settimeout(LONG_S)
                for _ in range(256):
                    line.sendall(bytes(1 << 20))
                return
            hung_up.set()

        thread = threading.Thread(target=broker)
        thread.start()
        address = Broker("127.0.0.1", listener.getsockname()[1], "", "imbrex", tls=False)
        with traced() as bytes_held, Publisher(address, "yard", "m"):
            assert hung_up.wait(LONG_S)
            thread.join()
            assert bytes_held() < 1 << 20


def pulled(monkeypatch, tmp_path: Path, handler, url: str = "https://models.example/a") -> None:
    transport = httpx.MockTransport(handler)
    monkeypatch.setattr(
        module.httpx, "Client", functools.partial(httpx.Client, transport=transport)
    )
    wanted = RemoteFile(url, 1000, hashlib.sha256(bytes(1000)).hexdigest())
    download(wanted, tmp_path / "a.onnx", lambda _: None, wait=lambda _: None)


def test_a_model_server_leads_to_no_plain_text(monkeypatch, tmp_path: Path) -> None:
    asked = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        if request.url.host == "models.example":
            return httpx.Response(302, headers={"Location": "http://mirror.example/a"})
        return httpx.Response(200, stream=httpx.ByteStream(bytes(1000)))

    with pytest.raises(Unavailable, match="does not use TLS"):
        pulled(monkeypatch, tmp_path, handler)
    assert asked == ["https://models.example/a"]
    pulled(monkeypatch, tmp_path, handler, "http://models.example/a")  # who began so may go on


def test_a_model_server_leads_to_no_file(monkeypatch, tmp_path: Path) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(302, headers={"Location": "file:///etc/passwd"})

    for url in ("https://models.example/a", "http://models.example/a"):
        with pytest.raises(Unavailable, match=r"redirects to file:/+etc/passwd"):
            pulled(monkeypatch, tmp_path, handler, url)
    assert not (tmp_path / "a.onnx").exists()


def test_a_model_that_never_ends_is_hung_up_on(monkeypatch, tmp_path: Path) -> None:
    sent = []

    class Endless(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            while True:
                sent.append(1)
                yield bytes(300)

    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Endless())

    with pytest.raises(PeerViolation, match="more than 1000"):
        pulled(monkeypatch, tmp_path, handler)
    assert len(sent) == 4


def test_a_packed_model_is_not_unpacked(monkeypatch, tmp_path: Path) -> None:
    """What comes is hashed as it comes: a bomb is another file."""

    def handler(request: httpx.Request) -> httpx.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        packed = {"Content-Encoding": "gzip", "Content-Length": "1000"}
        return httpx.Response(
            200, headers=packed, stream=httpx.ByteStream(b"\x1f\x8b" + bytes(998))
        )

    with pytest.raises(PeerViolation, match="SHA-256"):
        pulled(monkeypatch, tmp_path, handler)
