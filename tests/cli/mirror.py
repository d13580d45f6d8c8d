"""A real HTTP server of one file that misbehaves as it is told."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from models.vision.sidecar import dump, load, sidecar_path

NAME = "camera"


@dataclass
class Mirror:
    """What it serves and how. `breaks`: after how many bytes each answer ends early, one number
    per answer; `refuses`: so many 503 first. `ranges` notes what was asked for.
    """

    content: bytes
    breaks: list[int] = field(default_factory=list)
    with_ranges: bool = True
    refuses: int = 0
    missing: bool = False
    ranges: list[str] = field(default_factory=list)
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    mirror: Mirror

    def do_GET(self) -> None:
        mirror = self.mirror
        asked = self.headers.get("Range", "")
        mirror.ranges.append(asked)
        if mirror.missing or mirror.refuses:
            mirror.refuses -= bool(mirror.refuses)
            self.send_error(404 if mirror.missing else 503)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        body = mirror.content
        if asked and mirror.with_ranges:
            self.send_response(206 if start < len(body) else 416)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            body = body[start:]
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: mirror.breaks.pop(0)] if mirror.breaks else body)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def serving(mirror: Mirror) -> Iterator[Mirror]:
    handler = type("Handler", (_Handler,), {"mirror": mirror})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        mirror.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield mirror
        finally:
            server.shutdown()
            thread.join()


def write_manifest(folder: Path, model: Path, content: bytes | None = None) -> Path:
    """A manifest with the model, or with another content by its name."""
    body = model.read_bytes() if content is None else content
    row = {
        "file": f"models/{NAME}.onnx",
        "bytes": len(body),
        "sha256": hashlib.sha256(body).hexdigest(),
        "sidecar": json.loads(dump(load(sidecar_path(model)))),
    }
    path = folder / "manifest.json"
    path.write_text(json.dumps({"models": [row]}))
    return path
