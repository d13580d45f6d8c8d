"""Clients in a closed loop: each sends its next question when it has its answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from coordinator.serving.common import names
from imbrex import Client
from models.run.reference import EQUAL, Comparison, compare
from protos.errors import ImbrexError


@dataclass(slots=True)
class Asked:
    """When each answered question was asked and how long it took, in seconds; what was lost; and
    the answer that was furthest from the whole model's.
    """

    times: list[tuple[float, float]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    worst: Comparison = EQUAL

    def within(self, start_s: float, stop_s: float) -> list[float]:
        """The durations of those that were asked and answered between two moments, ascending."""
        return sorted(
            took for asked, took in self.times if start_s <= asked and asked + took < stop_s
        )

    def open_at(self, moment_s: float) -> float:
        """The longest duration of those that were open at a moment."""
        return max((took for at, took in self.times if at <= moment_s < at + took), default=0.0)


@contextmanager
def asking(
    client: Client, model: str, body: bytes, expected: Mapping[str, np.ndarray], count: int
) -> Iterator[Asked]:
    """`count` clients ask for a model meanwhile, each with the same body in NPZ; every answer is
    compared with what is expected.
    """
    asked, stop, guard = Asked(), threading.Event(), threading.Lock()

    def ask_again() -> None:
        while not stop.is_set():
            began_s = time.monotonic()
            try:
                answer = client.outputs(model, body, names.NPZ)
            except ImbrexError as error:
                asked.lost.append(str(error))
                continue
            took_s = time.monotonic() - began_s
            found = compare(answer.arrays, expected)
            with guard:
                asked.times.append((began_s, took_s))
                asked.worst = asked.worst.worse(found)

    with ThreadPoolExecutor(count, "client") as clients:
        running = [clients.submit(ask_again) for _ in range(count)]
        try:
            yield asked
        finally:
            stop.set()
        for future in running:
            future.result()
