"""Measurements of each device: its link, and how its tasks compare with predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from coordinator.costs.affine import Costs
from coordinator.costs.cluster import Device, EndpointOverhead, Link
from coordinator.costs.corrections import (
    LINK_DRIFT,
    MESSAGE_DRIFT,
    CorrectedCosts,
    Corrections,
    Observed,
)
from coordinator.costs.endpoints import HOST_ENDPOINT, EndpointEstimate
from coordinator.costs.links import LIVE_LOOPBACK, LinkEstimate, fit_line, prior_link
from coordinator.costs.rates import RateCosts, flop_per_s
from coordinator.costs.regression import DeviceProfile, RegressionCosts
from coordinator.devices.connection import Connection
from coordinator.devices.lone_transfers import lone_transfers
from coordinator.devices.loop_waits import LEAST_MESSAGE_S, Waits, message_waits, task_waits
from coordinator.tasks.task_graph import TaskGraph
from coordinator.tasks.timeline import TaskTimes
from protos.wire.facts import DeviceId, Facts

# Fitting a link takes milliseconds, so it is not done for every request.
LINKS_EVERY_S = 1.0
# So does replaying a request's messages.
REPLAY_EVERY_S = 0.25
# The size of a typical tile, for which links are compared.
TYPICAL_BYTES = 200_000


class DeviceMeasurements:
    """What probes, transfers and tasks have shown of each device."""

    def __init__(
        self, near: EndpointOverhead = HOST_ENDPOINT, before: Mapping[DeviceId, Link] | None = None
    ) -> None:
        """`near`: the host's cost of messages and tasks; `before`: links measured by earlier runs,
        used until they are probed.
        """
        self._near = near
        self._before = dict(before or {})
        self._endpoints: dict[DeviceId, EndpointEstimate] = {}
        self._links: dict[DeviceId, LinkEstimate] = {}
        self._corrections = Corrections.none()
        # Corrections by the tasks of each plan that ran.
        self._of_plans: WeakKeyDictionary[TaskGraph, Corrections] = WeakKeyDictionary()
        self._computing: WeakKeyDictionary[TaskGraph, dict[tuple[int, DeviceId], float]]
        self._computing = WeakKeyDictionary()  # uncorrected seconds
        # The same for whole networks that were measured, by name.
        self._unsplit: dict[tuple[str, DeviceId], float] = {}
        self._links_seen: dict[str, Observed] = {}
        self._links_seen_s = self._replayed_s = -math.inf
        self._fitted: dict[DeviceId, tuple[LinkEstimate, EndpointEstimate, Link]] = {}

    def connected(self, device: DeviceId) -> None:
        """A device is connected, perhaps by another cable than before, of which earlier transfers
        say nothing.
        """
        if device in self._links:
            self._links[device] = LinkEstimate(self.link(device))

    async def probe(self, device: DeviceId, connection: Connection) -> None:
        """Measures the link by pings of several sizes, in both directions.

        Raises:
            LostWorker: the connection ended.
        """
        fresh = LinkEstimate(LIVE_LOOPBACK) if connection.is_loopback else self._unprobed(device)
        self._links.setdefault(device, fresh)
        seen = await connection.probe()
        self._links[device] = self._links[device].probed(seen.messages)
        # The slower end handles them, and the other one takes some time as well.
        both_s = min(message.seconds for message in seen.messages if not message.size_bytes)
        far_s = min(seen.handling_s, max(0.0, both_s - self._near.message_s))
        end = self.endpoint(device).probed(far_s)
        fitted = fit_line(seen.messages)
        if connection.is_loopback:
            end = end.of_peer_bytes(self._near.byte_s)
        elif fitted:
            # A train runs at the speed of the wire; a single message adds the time of both ends.
            far_byte_s = max(0.0, fitted[1] - self._near.byte_s - seen.stream_byte_s)
            end = end.of_bytes(far_byte_s).of_peer_bytes(far_byte_s)
        self._endpoints[device] = end

    def _unprobed(self, device: DeviceId) -> LinkEstimate:
        return LinkEstimate(self._before.get(device) or prior_link(0))

    @property
    def links(self) -> dict[DeviceId, Link]:
        """Every link that was ever measured, as known now."""
        return self._before | {device: self.link(device) for device in self._links}

    def link(self, device: DeviceId) -> Link:
        """The best estimate of a device's link, including the cost of messages at its ends; cached
        until the next transfer.
        """
        estimate = self._links.get(device) or self._unprobed(device)
        end = self.endpoint(device)
        before = self._fitted.get(device)
        if before is not None and before[0] is estimate and before[1] is end:
            return before[2]
        prior = replace(estimate.prior, near=self._near, far=end.endpoint)
        link = replace(estimate, prior=prior).link
        if end.observations:
            # Messages with peers show the device's event loop better than a fit of both ends
            # together.
            link = replace(link, far=replace(end.endpoint, byte_s=link.far.byte_s))
        self._fitted[device] = (estimate, end, link)
        return link

    def _latest_link(self, device: DeviceId) -> Link:
        """The link as it was last requested: a fit for every request would cost milliseconds."""
        before = self._fitted.get(device)
        return before[2] if before is not None else self.link(device)

    def endpoint(self, device: DeviceId) -> EndpointEstimate:
        """The estimate for a device's event loop."""
        return self._endpoints.get(device, EndpointEstimate())

    def remember(self, device: DeviceId, profile: DeviceProfile | None) -> None:
        """Uses what earlier runs saw of such devices, until this one is observed."""
        if profile is not None and profile.endpoint is not None:
            self._endpoints.setdefault(device, EndpointEstimate(profile.endpoint))

    def costs(
        self, facts: Facts, profile: DeviceProfile | None, graph: TaskGraph | None = None
    ) -> Costs:
        """A device's costs: its profile (a prior without one), corrected by observed tasks, in
        particular those of `graph` if it has run.
        """
        costs: Costs = RegressionCosts(profile) if profile else RateCosts(facts.gflops)
        return CorrectedCosts(costs, self.correction(facts.id, graph))

    def correction(self, device: DeviceId, graph: TaskGraph | None = None) -> float:
        """Observed over predicted seconds; for the tasks of `graph` if it has run recently."""
        every = self._corrections.of(device)
        own = self._of_plans.get(graph) if graph else None
        return every.with_own(own.of(device)).factor if own else every.factor

    def answered(self, graph: TaskGraph) -> int:
        """Requests by a plan that its devices' speeds were learnt from."""
        own = self._of_plans.get(graph, Corrections.none())
        return max((observed.observations for observed in own.by_device.values()), default=0)

    def measured_unsplit(self, model: str, device: DeviceId, seconds: float) -> None:
        """A device computed a whole network in so many seconds, as fast as it computes tasks
        now.
        """
        self._forget_plans()
        self._unsplit[model, device] = seconds / self.correction(device)

    def unsplit_s(
        self, model: str, device: DeviceId, graph: TaskGraph | None = None
    ) -> float | None:
        """What a device that was measured would take for a whole network now; `graph` as for
        `correction`.
        """
        seconds = self._unsplit.get((model, device))
        return seconds and seconds * self.correction(device, graph)

    def forget_model(self, model: str) -> None:
        """A model was replaced or unloaded."""
        self._unsplit = {key: value for key, value in self._unsplit.items() if key[0] != model}

    def observed(self, devices: Sequence[DeviceId], now: float) -> Mapping[str, Observed]:
        """The present speeds of devices and links, and what devices take for a message with another
        one, from tasks; links are updated once a second.
        """
        if now - self._links_seen_s >= LINKS_EVERY_S:
            self._links_seen_s = now
            self._links_seen = {
                f"link of {device}": Observed(
                    math.log(self.link(device).transfer_s(TYPICAL_BYTES)), drift=LINK_DRIFT
                )
                for device in devices
                if device in self._links
            }
        seen = dict(self._links_seen)
        for device in devices:
            correction = self._corrections.of(device)
            seen[device] = Observed(correction.log_factor, correction.surprise)
            message_s = max(LEAST_MESSAGE_S, self.endpoint(device).endpoint.to_peers.message_s)
            seen[f"messages of {device}"] = Observed(math.log(message_s), drift=MESSAGE_DRIFT)
        return seen

    def forget(self, device: DeviceId) -> None:
        """Forgets what tasks and transfers showed of a device; its probe and its profile count
        until there are new ones, corrected like those of the others.
        """
        self._corrections = self._corrections.guessed(device)
        self._forget_unsplit(device)
        for graph, own in list(self._of_plans.items()):
            self._of_plans[graph] = own.without(device)
        self._endpoints.pop(device, None)
        if device in self._links:
            self._links[device] = replace(self._links[device], transfers=())

    def profiled(self, device: DeviceId) -> None:
        """A new profile replaces the old one, whose predictions and corrections are void."""
        self._corrections = self._corrections.without(device)
        self._forget_unsplit(device)
        self._forget_plans()

    def _forget_unsplit(self, device: DeviceId) -> None:
        self._unsplit = {key: value for key, value in self._unsplit.items() if key[1] != device}

    def _forget_plans(self) -> None:
        """Predictions of the plans that ran are void."""
        self._of_plans.clear()
        self._computing.clear()

    def gflops(self, device: Device) -> float:
        """The rate on a typical convolution in GFLOP/s, summed over concurrent tasks."""
        return flop_per_s(device.costs) * device.concurrency * 1e-9

    def observe(
        self,
        graph: TaskGraph,
        times: Sequence[TaskTimes],
        known: Callable[[DeviceId], Device | None],
        now: float,
    ) -> None:
        """Compares a request's observed task times with the uncorrected predictions. `known` is
        called once per plan and device; predictions are cached.
        """
        sums: dict[DeviceId, tuple[float, float]] = {}
        for timed in times:
            device = DeviceId(timed.device)
            predicted_s = self._uncorrected_s(graph, timed.task, device, known)
            if predicted_s is not None:
                expected_s, observed_s = sums.get(device, (0.0, 0.0))
                taken_s = timed.stop_s - timed.start_s
                sums[device] = (expected_s + predicted_s, observed_s + taken_s)
        for device, lone in lone_transfers(graph, times):
            if device in self._links:
                self._links[device] = self._links[device].observed(lone.size_bytes, lone.seconds)
        own = self._of_plans.get(graph, Corrections.none())
        for device, (expected_s, observed_s) in sums.items():
            own = own.observed(device, expected_s, observed_s, now)
            self._corrections = self._corrections.observed(device, expected_s, observed_s, now)
        self._of_plans[graph] = own
        links = {device: self._latest_link(device) for device in sums}
        starting = task_waits(times)
        sending: Waits = {}
        if now - self._replayed_s >= REPLAY_EVERY_S:
            sending = message_waits(graph, times, links)
            if sending:
                self._replayed_s = now
        for device in sums:
            waits = starting.get(device, ()), sending.get(device, ())
            self._endpoints[device] = self.endpoint(device).observed(*waits, now)

    def computing_s(
        self,
        graph: TaskGraph,
        task: int,
        device: DeviceId,
        known: Callable[[DeviceId], Device | None],
    ) -> float | None:
        """Seconds that a device should take for a task, given its recent tasks; None if there is no
        such device.
        """
        alone_s = self._uncorrected_s(graph, task, device, known)
        return None if alone_s is None else alone_s * self.correction(device)

    def _uncorrected_s(
        self,
        graph: TaskGraph,
        task: int,
        device: DeviceId,
        known: Callable[[DeviceId], Device | None],
    ) -> float | None:
        memo = self._computing.setdefault(graph, {})
        key = (task, device)
        if key not in memo:
            costed = known(device)
            if costed is None:
                return None
            predicted_s = costed.costs.block_s(graph.works[task]) / self.correction(device)
            if len(graph.works) == 1:  # the whole network
                predicted_s = self._unsplit.get((graph.plan.model, device), predicted_s)
            memo[key] = predicted_s
        return memo[key]
