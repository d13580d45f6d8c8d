"""The crowd's clients and the process that it is compared with."""

from __future__ import annotations

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.crowd import Crowd, crowd, rival_process


def test_every_client_is_answered_rightly_by_the_rival() -> None:
    with rival_process(1.0) as url:
        seen = asyncio.run(crowd(url, 3, 0.5))
    assert len(seen.latencies) >= 3
    assert (seen.errors, seen.wrong) == ([], 0)


def test_wrong_and_refused_answers_are_counted() -> None:
    class Wrong(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        asked = 0

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            Wrong.asked += 1
            body = b'{"predictions": []}'
            self.send_response(503 if Wrong.asked % 2 else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Wrong) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        seen = asyncio.run(crowd(f"http://127.0.0.1:{server.server_port}/infer", 1, 0.1))
        server.shutdown()
        thread.join()
    assert seen.wrong > 0
    assert seen.errors
    assert abs(seen.wrong - len(seen.errors)) <= 1


def test_latencies_are_told_by_median_and_tail() -> None:
    seen = Crowd(seconds=10.0, latencies=[0.1] * 98 + [0.4] * 2)
    told = seen.as_json()
    assert (told["images_per_s"], told["p50_s"], told["p99_s"]) == (10.0, 0.1, 0.4)
    assert told["p99_over_median"] == 4.0
