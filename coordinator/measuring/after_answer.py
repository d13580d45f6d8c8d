"""What is learnt after an answer was sent: costs, links, whether to plan again, the journal."""

import asyncio

from coordinator.devices.devices import Devices
from coordinator.measuring.measuring import Measuring
from coordinator.measuring.unsplit import UnsplitTimes
from coordinator.plans.plans import Plans
from coordinator.requests.journal import Journal, RequestRecord
from coordinator.tasks.task_graph import TaskGraph

# What is learnt from a request waits until its interface has sent the answer (`settle`). Interfaces
# that do not say so have sent it by then: it takes a few milliseconds to encode.
SETTLE_AFTER_S = 0.05
# Task times wait for it, some kilobytes per request. More requests than these are settled at once.
MOST_UNSETTLED = 256


class AfterAnswer:
    """Learns from requests a little after they were answered."""

    def __init__(
        self,
        measuring: Measuring,
        devices: Devices,
        plans: Plans,
        journal: Journal,
        unsplit: UnsplitTimes,
        *,
        replan: bool,
    ) -> None:
        self._measuring = measuring
        self._devices = devices
        self._plans = plans
        self._journal = journal
        self._unsplit = unsplit
        self._replan = replan
        self._unsettled: list[tuple[TaskGraph, RequestRecord]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, graph: TaskGraph, ended: RequestRecord) -> None:
        """A request was answered."""
        self._unsettled.append((graph, ended))
        if len(self._unsettled) > MOST_UNSETTLED:
            self.settle()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(SETTLE_AFTER_S, self.settle)

    def settle(self) -> None:
        """Learns from all of them now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        unsettled, self._unsettled = self._unsettled, []
        for graph, ended in unsettled:
            self._measuring.observe(graph, ended.tasks)
            if self._replan:
                self._plans.answered(ended.model, self._devices.observed(ended.ended_s))
                if ended.answer is not None:
                    timing = ended.answer.timing
                    latency_s = timing.total_s - timing.queue_s
                    self._unsplit.answered(ended.model, graph, latency_s)
            self._journal.add(ended)
