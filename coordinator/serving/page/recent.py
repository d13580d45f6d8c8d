"""How long the latest answers of each model took: a page that opens begins with them."""

from __future__ import annotations

from collections import deque
from typing import Any

from coordinator.requests.journal import Ended

# One slow answer says little; the page shows the median of this many.
PER_MODEL = 15
# The models that were asked last; a home serves a few.
MOST_MODELS = 32


class Recent:
    """The latest answers, by model, oldest first."""

    def __init__(self) -> None:
        self._answers: dict[str, deque[dict[str, Any]]] = {}

    def add(self, model: str, ended: Ended) -> None:
        """Keeps an answer; `model` is its public name."""
        if ended.error is not None:
            return
        answers = self._answers.pop(model, None) or deque(maxlen=PER_MODEL)
        self._answers[model] = answers  # the last to be dropped
        if len(self._answers) > MOST_MODELS:
            del self._answers[next(iter(self._answers))]
        answers.append({"plan_version": ended.plan_version, "taken_ms": taken_ms(ended)})

    def told(self) -> dict[str, list[dict[str, Any]]]:
        """The `recent` event."""
        return {model: [*answers] for model, answers in self._answers.items()}


def taken_ms(ended: Ended) -> float:
    """Milliseconds from a request's turn to its answer: what one device alone is compared with,
    which waits for nobody either.
    """
    waited_s = ended.answer.timing.queue_s if ended.answer else 0.0
    return round((ended.ended_s - ended.arrived_s - waited_s) * 1000, 2)
