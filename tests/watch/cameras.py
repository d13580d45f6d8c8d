"""Cameras on loopback: MJPEG over HTTP, as network cameras send it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO

import numpy as np
from PIL import Image

SIZE = (320, 240)
# As large as a camera's pictures: readers of streams look at some kilobytes before they begin.
NOISE = np.random.default_rng(1).integers(0, 256, (200, 320, 3), dtype=np.uint8)


def jpeg(shade: int) -> bytes:
    file = BytesIO()
    picture = Image.new("RGB", SIZE, (shade, shade, shade))
    picture.paste(Image.fromarray(NOISE), (0, 40))
    picture.save(file, "JPEG")
    return file.getvalue()


@dataclass
class Camera:
    """Sends a picture whenever `more` is released; closes after `breaks` of them. `opened` counts
    connections.
    """

    breaks: int = 10_000
    opened: int = 0
    sent: int = 0
    url: str = ""
    more: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    closing: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    camera: Camera

    def do_GET(self) -> None:
        camera = self.camera
        if not self.path.startswith("/mjpg"):
            self.send_error(404)
            return
        camera.opened += 1
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        self.end_headers()
        try:
            for _ in range(camera.breaks):
                while not camera.more.acquire(timeout=0.05):
                    if camera.closing.is_set():
                        return
                self._picture(camera)
        except OSError:
            return

    def _picture(self, camera: Camera) -> None:
        body = jpeg(camera.sent % 256)
        camera.sent += 1
        head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(body)}\r\n\r\n"
        self.wfile.write(head.encode() + body + b"\r\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def camera(**how: int) -> Iterator[Camera]:
    made = Camera(**how)
    handler = type("Handler", (_Handler,), {"camera": made})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        made.url = f"http://127.0.0.1:{server.server_port}/mjpg"
        try:
            yield made
        finally:
            made.closing.set()
            server.shutdown()
            thread.join()
