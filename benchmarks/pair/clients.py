"""Clients of the Open Inference Protocol that compare each answer with the whole model's."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from models.catalogue.catalogue import load
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, compare, random_inputs

CLIENTS = 8
TIMEOUT_S = 120.0
TOLERANCE = 1e-5


@dataclass
class Seen:
    """What clients saw: statuses (0: no answer), wrong answers, when each request began and how
    long it took, and what was said of those that were lost.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    times: list[tuple[float, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """How many have ended."""
        return self.statuses.total()

    @property
    def lost(self) -> int:
        """How many were not answered."""
        return self.requests - self.statuses[200]

    def latency_s(self, share: float) -> float:
        """The latency that this share of the requests does not exceed."""
        return float(np.quantile([seconds for _, seconds in self.times], share))

    def told(self) -> dict[str, Any]:
        """As numbers."""
        return {
            "requests": self.requests,
            "lost": self.lost,
            "wrong": self.wrong,
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "errors": self.errors[:5],
            "median_s": round(self.latency_s(0.5), 4) if self.times else None,
            "p99_s": round(self.latency_s(0.99), 4) if self.times else None,
        }

    def takeover_s(self, moments: Sequence[float]) -> list[float] | None:
        """How long the slowest request took that was open at each of these moments: the median and
        the worst.
        """
        slowest = sorted(
            max((took for began, took in self.times if began <= at < began + took), default=0.0)
            for at in moments
        )
        if not slowest:
            return None
        return [round(slowest[len(slowest) // 2], 3), round(slowest[-1], 3)]


class Clients:
    """They ask for a model's output, one request after another each."""

    def __init__(self, url: str, model: str) -> None:
        proto = load(model).proto
        feeds = random_inputs(load_graph(proto))
        self._right = WholeModel(proto, 1).run(feeds)
        inputs = [
            {
                "name": name,
                "datatype": "FP32",
                "shape": array.shape,
                "parameters": {"binary_data_size": array.nbytes},
            }
            for name, array in feeds.items()
        ]
        asked = {"inputs": inputs, "parameters": {"binary_data_output": True}}
        header = json.dumps(asked).encode()
        self._body = header + b"".join(array.tobytes() for array in feeds.values())
        self._headers = {"Inference-Header-Content-Length": str(len(header))}
        self._url = f"{url}/v2/models/{model}/infer"
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.seen = Seen()

    @contextmanager
    def asking(self, count: int = CLIENTS) -> Iterator[Seen]:
        """All of them ask meanwhile."""
        self._stop.clear()
        seen = self.seen = Seen()
        threads = [threading.Thread(target=self._ask, args=(seen,)) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield seen
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def _ask(self, seen: Seen) -> None:
        with httpx.Client(timeout=TIMEOUT_S, trust_env=False) as client:
            while not self._stop.is_set():
                began_s = time.monotonic()
                status, right = self._answer(client)
                with self._lock:
                    seen.statuses[status] += 1
                    seen.wrong += not right
                    seen.times.append((began_s, time.monotonic() - began_s))

    def _answer(self, client: httpx.Client) -> tuple[int, bool]:
        try:
            answer = client.post(self._url, content=self._body, headers=self._headers)
        except httpx.HTTPError as error:
            self.seen.errors.append(repr(error))
            return 0, True
        return answer.status_code, not answer.is_success or self.is_right(answer)

    def is_right(self, answer: httpx.Response) -> bool:
        """Whether an answer is the whole model's."""
        start = int(answer.headers["Inference-Header-Content-Length"])
        told, found = json.loads(answer.content[:start]), {}
        for output in told["outputs"]:
            size = output["parameters"]["binary_data_size"]
            data = answer.content[start : start + size]
            found[output["name"]] = np.frombuffer(data, np.float32).reshape(output["shape"])
            start += size
        return compare(found, self._right).max_rel_error <= TOLERANCE
