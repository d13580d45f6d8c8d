"""What goes wrong while `imbrex watch` runs, and how it ends then."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import paho.mqtt.client as paho
import pytest

from imbrex.watch import folder, stream
from imbrex.watch.mqtt import Broker, Publisher, _is_queued
from imbrex.watch.video_frames import Frame
from models.digits.examples import examples
from protos.errors import BadRequest
from tests.cli.run_cli import imbrex, imbrex_forked
from tests.forked import Forked
from tests.serving.processes import Service, serving

LONG_S = 60


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("watched"), ["--model", "digits"], workers=1) as running:
        yield running


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for number in range(3):
        shutil.copy(examples()[0].path, tmp_path / f"{number}.png")
    return tmp_path


@contextmanager
def watching(*arguments: object, **where: Any) -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **where}
    process = Forked(["watch", *arguments], text=True, **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def coordinator(answer: Callable[[int], tuple[int, Any]]) -> Iterator[str]:
    """What answers the n-th picture with a status and a document."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.path)
            status, document = answer(len(asked) - 1)
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def error(code: str) -> dict[str, Any]:
    return {"error": {"code": code, "cause": f"{code} it is", "cure": "change that"}}


def test_lines_go_to_their_pipe_while_a_terminal_shows_the_rate(
    service: Service, pictures: Path
) -> None:
    ours, theirs = os.openpty()
    threading.Thread(target=partial(_drain, ours), daemon=True).start()
    told = (pictures, "--existing", "--url", service.url, "--frames", 3)
    with watching(*told, stderr=theirs) as process:
        out, _ = process.communicate(timeout=LONG_S)
    os.close(theirs)
    assert {json.loads(each)["name"] for each in out.splitlines()} == {"0.png", "1.png", "2.png"}


def _drain(file: int) -> None:
    try:
        while os.read(file, 1 << 16):
            pass
    except OSError:
        return


@pytest.mark.parametrize("url", ["ftp://hub", "http://[hub"])
def test_an_address_that_is_none_ends_it(pictures: Path, url: str) -> None:
    ran = imbrex_forked("watch", pictures, "--existing", "--url", url)
    assert ran.code == 1
    assert "cure:" in ran.err
    assert "Traceback" not in ran.err


def test_a_camera_s_address_that_is_none_is_refused() -> None:
    ran = imbrex("watch", "rtsp://me:pa[ss@yard/1")
    assert (ran.code, "Traceback" in ran.err) == (1, False), ran.err
    assert "rtsp" in ran.err


def test_a_full_disk_ends_it(service: Service, pictures: Path) -> None:
    command = [sys.executable, "-m", "imbrex", "watch", pictures, "--existing", "--url"]
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [*command, service.url],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LONG_S,
            check=False,
        )
    assert ran.returncode == 1
    assert "No space left" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_watch_survives_too_little_memory_for_a_moment(service: Service, pictures: Path) -> None:
    picture = {"content": examples()[0].path.read_bytes(), "headers": {"Content-Type": "image/png"}}
    right = httpx.post(f"{service.url}/v1/models/digits/infer", **picture, timeout=LONG_S).json()

    def answer(number: int) -> tuple[int, Any]:
        return (503, error("too_little_memory")) if number == 1 else (200, right)

    with (
        coordinator(answer) as url,
        watching(pictures, "--existing", "--url", url, "--frames", 3) as process,
    ):
        out, told = process.communicate(timeout=LONG_S)
    lines = [json.loads(each) for each in out.splitlines()]
    assert [each.get("error", {}).get("code") for each in lines] == [
        None,
        "too_little_memory",
        None,
    ]
    # A service's log says it, too.
    assert "too_little_memory it is" in told


@pytest.mark.parametrize(("status", "code"), [(401, "no_key"), (403, "not_allowed")])
def test_watch_ends_without_a_key_that_may_ask(pictures: Path, status: int, code: str) -> None:
    with coordinator(lambda _: (status, error(code))) as url:
        ran = imbrex_forked("watch", pictures, "--existing", "--url", url)
    assert ran.code == 1
    assert f"{code} it is" in ran.err


def test_a_second_ctrl_c_does_not_wait_for_the_answer(pictures: Path) -> None:
    waiting, ended = threading.Event(), threading.Event()

    def answer(_: int) -> tuple[int, Any]:
        waiting.set()
        ended.wait(LONG_S)
        return 503, error("unavailable")

    with (
        coordinator(answer) as url,
        watching(pictures, "--existing", "--url", url) as process,
    ):
        assert waiting.wait(LONG_S)
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGINT)
        process.wait(LONG_S)
        ended.set()


def test_a_picture_that_goes_while_its_folder_is_listed_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stays.png").write_bytes(b"1")
    (tmp_path / "goes.png").write_bytes(b"1")
    scandir = os.scandir

    @contextmanager
    def listed(path: Path) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(path) as entries:
            found = list(entries)
        (tmp_path / "goes.png").unlink()
        yield found

    watched = folder.Folder(tmp_path, True)
    monkeypatch.setattr(folder.os, "scandir", listed)
    assert watched._listed().keys() == {"stays.png"}


def test_a_stream_that_has_no_pictures_for_a_moment_is_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []

    @contextmanager
    def opens(url: str, **_: object) -> Iterator[str]:
        yield url

    def frames(container: str, name: str) -> Iterator[Callable[[], bytes]]:
        opened.append(container)
        if len(opened) == 2:
            raise BadRequest(cause=f"{name} has no video", cure="")
        yield lambda: b"picture"

    monkeypatch.setattr(stream.av, "open", opens)
    monkeypatch.setattr(stream, "_frames", frames)
    camera, stopped = stream.Stream("rtsp://yard/1", retry_s=0.01), threading.Event()
    found: Queue[Frame] = Queue()
    giving = threading.Thread(target=camera.run, args=(found.put, stopped), daemon=True)
    giving.start()
    assert [found.get(timeout=LONG_S).number for _ in range(2)] == [0, 1]
    stopped.set()
    giving.join(LONG_S)
    assert len(opened) >= 3


def test_a_message_that_was_lost_with_its_connection_waits_no_longer() -> None:
    told = paho.MQTTMessageInfo(1)
    assert _is_queued(told)
    told.rc = paho.MQTT_ERR_CONN_LOST
    assert not _is_queued(told)


def test_labels_that_make_the_same_topic_have_a_sensor_each() -> None:
    labels = ("человек", "собака", "traffic light", "traffic-light")
    publisher = Publisher(Broker.of("mqtt://hub"), "yard", "digits", labels)
    told = [each for topic, each in publisher.announcements().items() if "binary" in topic]
    assert [each["name"] for each in told] == list(labels)
    assert len({each["unique_id"] for each in told}) == len(labels)


@pytest.mark.parametrize(
    ("source", "flags", "named"),
    [
        (".", ("--presence", "cat"), "--presence"),
        ("rtsp://yard/1", ("--existing",), "--existing"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(
    source: str, flags: tuple[str, ...], named: str
) -> None:
    ran = imbrex("watch", source, *flags)
    assert ran.code == 2
    assert named in ran.err


def test_the_rate_is_asked_while_answers_come() -> None:
    from imbrex.watch.run import Pace

    pace, stop = Pace(), threading.Event()

    def add() -> None:
        while not stop.is_set():
            pace.add(time.monotonic(), 0.1)

    adding = threading.Thread(target=add)
    adding.start()
    try:
        for _ in range(300):
            assert pace.rate(time.monotonic()) >= 0
            assert pace.latency_s(time.monotonic()) in {0.0, 0.1}
    finally:
        stop.set()
        adding.join()
