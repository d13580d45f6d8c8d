"""Requests tensors from devices, and fills them into cases."""

import asyncio
from collections.abc import Sequence

import numpy as np

from coordinator.audit.case import Case
from coordinator.devices.pool import Pool
from coordinator.requests.driver import Driver
from coordinator.tasks.events import RequestId
from models.tensors.boxes import Box
from protos import imbrex_pb2 as pb
from protos.errors import LostWorker
from protos.wire.convert import ranges
from protos.wire.facts import DeviceId


class Collector:
    """The cases that wait for tensors, by request."""

    def __init__(self, pool: Pool, requests: Driver) -> None:
        self._pool = pool
        self._requests = requests
        self._cases: dict[RequestId, Sequence[Case]] = {}
        self._arrived: dict[RequestId, asyncio.Future[None]] = {}

    async def collect(self, request: RequestId, cases: Sequence[Case], most_s: float) -> None:
        """Returns when all tensors of a request's cases have arrived.

        Raises:
            LostWorker: a device is gone or silent, or does not keep what it should.
        """
        arrived = self._arrived[request] = asyncio.get_running_loop().create_future()
        self._cases[request] = cases
        self._requests.evidence[request] = self
        try:
            async with asyncio.timeout(most_s):
                for wanted in [wanted for case in cases for wanted in case.wanted]:
                    await self._pool.connection(wanted.device).send(wanted.items, wanted.payloads)
                if not all(case.is_complete for case in cases):
                    await arrived
        except TimeoutError:
            raise LostWorker(
                cause=f"{_silent(cases)} did not send a task's tensors within {most_s:.0f} s",
                cure="See the log of that device's worker",
            ) from None
        finally:
            del self._cases[request], self._arrived[request], self._requests.evidence[request]

    def received(self, device: DeviceId, item: pb.Item, payload: object) -> bool:
        """Takes an item if it was requested here; returns whether it was."""
        kind = item.WhichOneof("kind")
        if kind == "failed":
            return self._failed(device, item.failed)
        if kind != "tensor" or not isinstance(payload, np.ndarray):
            return False
        header = item.tensor
        request = RequestId(header.request)
        key = (device, header.task, header.attempt, header.tensor)
        box = Box.of(*ranges(header.box))
        cases = self._cases.get(request, ())
        took = [case.fill(key, box, payload) for case in cases]  # several may want it
        if any(took) and all(case.is_complete for case in cases):
            self._end(request, None)
        return any(took)

    def _failed(self, device: DeviceId, failed: pb.TaskFailed) -> bool:
        request = RequestId(failed.request)
        asked = {wanted.key[:3] for case in self._cases.get(request, ()) for wanted in case.wanted}
        if (device, failed.task, failed.attempt) not in asked:
            return False
        cause = f"{device} did not send a task's tensors: {failed.message}"
        self._end(request, LostWorker(cause=cause, cure="See the log of that device's worker"))
        return True

    def _end(self, request: RequestId, error: LostWorker | None) -> None:
        arrived = self._arrived[request]
        if arrived.done():
            return
        if error is None:
            arrived.set_result(None)
        else:
            arrived.set_exception(error)


def _silent(cases: Sequence[Case]) -> str:
    devices = {wanted.device for case in cases for wanted in case.wanted if wanted.missing > 0}
    return ", ".join(sorted(devices))
