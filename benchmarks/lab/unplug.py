"""A device's cable is pulled while clients ask, and plugged in again."""

from __future__ import annotations

import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.lab.cluster import Lab, Say
from benchmarks.lab.cuts import cut
from benchmarks.lab.measure import Question
from coordinator.serving.common import names
from models.reference import EQUAL, compare
from protos.errors import ImbrexError

CLIENTS = 4
TIMES = 7
# Until the cluster has settled for so many clients; without harm; without a device, and with it.
_SETTLE_S, _CALM_S, _GONE_S, _BACK_S = 60.0, 30.0, 15.0, 20.0


def unplugged(lab: Lab, question: Question, say: Say) -> dict[str, Any]:
    """Each device but the host by turns. `ratio`: the slowest answer that was open as a cable was
    pulled, over the undisturbed median.
    """
    stop, guard = threading.Event(), threading.Lock()
    times: list[tuple[float, float]] = []
    lost: list[str] = []
    worst = EQUAL

    def ask_again() -> None:
        nonlocal worst
        while not stop.is_set():
            asked_s = time.monotonic()
            try:
                answer = lab.client.outputs(question.name, question.body, names.NPZ)
            except ImbrexError as error:
                lost.append(str(error))
                continue
            with guard:
                times.append((asked_s, time.monotonic() - asked_s))
                worst = worst.worse(compare(answer.arrays, question.expected))

    moments: list[float] = []
    with ThreadPoolExecutor(CLIENTS, "client") as clients:
        asking = [clients.submit(ask_again) for _ in range(CLIENTS)]
        time.sleep(_SETTLE_S)
        calm_s = time.monotonic()
        time.sleep(_CALM_S)
        for number in range(TIMES):
            say(f"cable {number + 1} of {TIMES}")
            moments.append(time.monotonic())
            mend = cut(lab.network, 1 + number % (lab.devices - 1))
            time.sleep(_GONE_S)
            mend()
            time.sleep(_BACK_S)
        stop.set()
        for client in asking:
            client.result()
    usual_s = statistics.median(
        took for asked, took in times if asked >= calm_s and asked + took < moments[0]
    )
    open_s = [
        max((took for asked, took in times if asked <= at < asked + took), default=0.0)
        for at in moments
    ]
    return {
        "clients": CLIENTS,
        "cables": TIMES,
        "answers": len(times),
        "lost": len(lost),
        "losses": lost[:5],
        "undisturbed_s": round(usual_s, 4),
        "open_s": [round(each, 4) for each in open_s],
        "ratio": round(max(open_s) / usual_s, 2),
        "max_rel_error": worst.max_rel_error,
    }
