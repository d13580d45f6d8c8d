"""The audit of requests: after the answer, some of its tasks are computed again.

The sample is drawn when everything has been delivered. Until the evidence is collected, the devices
keep their results of the request; the answer does not wait for that.
"""

import asyncio
import random
from collections import Counter

import structlog

from coordinator.audit.arbiter import Arbiter, NoVerdict
from coordinator.audit.case import Case, case_of, tasks_by_device
from coordinator.audit.collector import Collector
from coordinator.audit.sampling import AuditSampling
from coordinator.audit.verdict import Verdict
from coordinator.devices.announcements import Announcements
from coordinator.devices.pool import Pool
from coordinator.requests.driver import Driver
from coordinator.requests.request_state import ComputedRequest
from protos.errors import ImbrexError
from protos.wire.facts import DeviceId

log = structlog.get_logger(__name__)

# Audits at a time: each holds the tensors of one task, and has devices keep a request's results.
MOST_AT_ONCE = 2
# Kept outputs travel like any others. A client that awaits its answers sends the next picture at
# once; that goes first.
COLLECT_S = 10.0
PAUSE_S = 0.25


class Auditor:
    """Audits about one in `every` tasks of each device; none if 0. Announces every verdict."""

    def __init__(
        self,
        every: int,
        collector: Collector,
        arbiter: Arbiter,
        pool: Pool,
        requests: Driver,
        announcements: Announcements,
    ) -> None:
        # Unpredictable, so that no device can know which task is checked next.
        self._chance = random.SystemRandom()
        self.sampling = AuditSampling(every, self._chance)
        self._every = every
        self._collector = collector
        self._arbiter = arbiter
        self._pool = pool
        self._requests = requests
        self._announcements = announcements
        # The devices that each audit examines.
        self._at_work: dict[asyncio.Task[None], list[DeviceId]] = {}

    def take(self, computed: ComputedRequest) -> bool:
        """Looks at a request that was computed. Returns whether the audit keeps it, and releases it
        on its devices later; its arrays must not change meanwhile.
        """
        if not self._every:
            return False
        due = self.sampling.ran(Counter(computed.state.attempts.values()))
        if not due or len(self._at_work) >= MOST_AT_ONCE:
            return False
        auditing = asyncio.create_task(self._audit(computed, due))
        self._at_work[auditing] = []
        auditing.add_done_callback(self._at_work.pop)
        return True

    async def close(self) -> None:
        """Stops all audits."""
        for auditing in self._at_work:
            auditing.cancel()
        await asyncio.gather(*self._at_work, return_exceptions=True)

    async def _audit(self, computed: ComputedRequest, due: list[DeviceId]) -> None:
        """Examines tasks of those of the `due` devices that are not examined already."""
        ran, cases = tasks_by_device(computed.state), list[Case]()
        busy = {device for devices in self._at_work.values() for device in devices}
        free = [device for device in due if device in ran and device not in busy]
        auditing = asyncio.current_task()
        assert auditing is not None
        self._at_work[auditing] = free[: MOST_AT_ONCE - len(busy)]
        try:
            for device in self._at_work[auditing]:
                task = self._chance.choice(ran[device])
                cases.append(case_of(computed.request, computed.state, task, self._pool))
                self.sampling.chosen(device)
            if cases:
                await asyncio.sleep(PAUSE_S)
                await self._collector.collect(computed.request, cases, COLLECT_S)
        except ImbrexError as error:
            for case in cases:
                self._no_verdict(case, error)
            return
        finally:
            self._requests.release(computed.request, computed.state.holders)
        for case in cases:
            await self._judge(case)

    async def _judge(self, case: Case) -> None:
        try:
            difference = await self._arbiter.judge(case)
        except NoVerdict as error:
            self._no_verdict(case, error)
            return
        self._announcements.announce(Verdict.of(case, difference))

    def _no_verdict(self, case: Case, error: ImbrexError) -> None:
        log.warning("audit gave no verdict", device=case.device, model=case.model, cause=str(error))
        self.sampling.again(case.device)
