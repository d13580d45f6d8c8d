"""Whole networks on one device, where a division gains so little that it may be slower in truth."""

import asyncio

import structlog

from coordinator.devices.devices import Devices
from coordinator.library.loaded import Library
from coordinator.measuring.baseline import whole_on
from coordinator.plans.plans import Plans
from coordinator.requests.admission import Admission
from coordinator.tasks.task_graph import TaskGraph
from protos.errors import ImbrexError

# Nobody doubts a plan that answers faster by more than this factor than one device is predicted to:
# predictions for whole maps are not as far off. Assumed.
CLEARLY_FASTER = 1.5
# By so many requests, corrections have settled on the plan's tiles.
SETTLED = 10
# Their median counts; a task meanwhile waits for one of them at most.
_RUNS = 3

log = structlog.get_logger(__name__)


class UnsplitTimes:
    """Measures a model on one device, once its plan has run for a while, if that is not clearly
    faster than one device is predicted to be; then plans again. A device's predictions are
    corrected by the tiles that it computes, which are less efficient than the whole network.
    """

    def __init__(
        self, devices: Devices, library: Library, admission: Admission, plans: Plans
    ) -> None:
        self._devices, self._library = devices, library
        self._admission, self._plans = admission, plans
        # One at a time; the model and version of the last plan for which it could not be done.
        self._work: asyncio.Task[None] | None = None
        self._failed = ("", 0)

    def answered(self, model: str, graph: TaskGraph, latency_s: float) -> None:
        """A request to a model was answered by this plan, in so many seconds without its wait."""
        plan, measured = graph.plan, self._devices.measured
        if plan.strategy != "auto" or len(plan.devices) == 1:
            return
        if plan.single_device_latency_s > CLEARLY_FASTER * latency_s:
            return
        if (
            self._work is not None
            or (plan.model, plan.version) == self._failed
            or measured.answered(graph) < SETTLED
        ):
            return
        if measured.unsplit_s(plan.model, plan.baseline_device) is None:
            self._work = asyncio.create_task(self._measure(model, graph))

    async def stop(self) -> None:
        """Stops measuring."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def _measure(self, model: str, graph: TaskGraph) -> None:
        name, device = graph.plan.model, graph.plan.baseline_device
        try:
            loaded, connection = (
                await self._library.load(model),
                self._devices.pool.connection(device),
            )
            await self._admission.idle()
            baseline = await whole_on(connection, loaded, {connection.facts.threads}, _RUNS)
        except ImbrexError as error:  # the device is too small for it, or has gone
            log.info("not measured on one device", model=name, device=device, cause=error.cause)
            self._failed = name, graph.plan.version
        except Exception:
            log.exception("a network cannot be measured on one device", model=name, device=device)
            self._failed = name, graph.plan.version
        else:
            log.info(
                "measured on one device", model=name, device=device, seconds=baseline.latency_s
            )
            self._devices.measured.measured_unsplit(name, device, baseline.latency_s)
            self._plans.devices_changed(f"{name} measured on {baseline.device} alone", model=model)
        finally:
            self._work = None
