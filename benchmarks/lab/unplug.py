"""A device's cable is pulled while clients ask, and plugged in again."""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.clients import asking
from benchmarks.lab.cluster import Lab, Say
from benchmarks.lab.cuts import cut
from benchmarks.lab.measure import Question

CLIENTS = 4
TIMES = 7
# Until the cluster has settled for so many clients; without harm; without a device, and with it.
_SETTLE_S, _CALM_S, _GONE_S, _BACK_S = 60.0, 30.0, 15.0, 20.0


def unplugged(lab: Lab, question: Question, say: Say) -> dict[str, Any]:
    """Each device but the host by turns. `ratio`: the slowest answer that was open as a cable was
    pulled, over the undisturbed median.
    """
    moments: list[float] = []
    with asking(lab.client, question.name, question.body, question.expected, CLIENTS) as asked:
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
    usual_s = statistics.median(asked.within(calm_s, moments[0]))
    open_s = [asked.open_at(moment) for moment in moments]
    return {
        "clients": CLIENTS,
        "cables": TIMES,
        "answers": len(asked.times),
        "lost": len(asked.lost),
        "losses": asked.lost[:5],
        "undisturbed_s": round(usual_s, 4),
        "open_s": [round(seconds, 4) for seconds in open_s],
        "ratio": round(max(open_s) / usual_s, 2),
        "max_rel_error": asked.worst.max_rel_error,
    }
