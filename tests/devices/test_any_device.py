"""Every order of drains, wrong results, probes and profiles that Hypothesis can think of: a device
is out exactly while it should be, and all links and devices are measured, one at a time.
"""

from collections.abc import Callable, Sequence
from itertools import count
from math import inf

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from coordinator.devices.withheld import (
    LAST_S,
    PATIENCE_S,
    PROBATION_S,
    STRIKES,
    STRIKES_WITHIN_S,
)
from coordinator.measuring.queues import AGREE, PROBES_AT_MOST
from protos.wire.facts import DeviceId
from tests.devices.of_devices import FAULTS, KindsDriver, LinksDriver, WithheldDriver
from tests.plans.any_order import run_in_any_order

A, B, C = IDS = tuple(map(DeviceId, "abc"))
KINDS = {A: "pi 4", B: "pi 4", C: "pi 5"}
DEVICES = st.sampled_from(IDS)


class AnyDevice(RuleBasedStateMachine):
    """What the machines said of each device, and what was measured."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.withheld = WithheldDriver()
        # Until when a draining device may finish, a device in quarantine is out, and the last
        # quarantine of each lasted.
        self.draining: dict[DeviceId, float] = {}
        self.drained: set[DeviceId] = set()
        self.out_until_s: dict[DeviceId, float] = {}
        self.strikes: dict[DeviceId, list[float]] = {device: [] for device in IDS}
        self.back_s: dict[DeviceId, float] = {}
        self.links = LinksDriver()
        self.causes = count(1)
        self.wanted: list[tuple[str, list[DeviceId]]] = []
        self.rates: list[float] = []
        self.kinds = KindsDriver()
        self.to_profile: set[DeviceId] = set()
        self.profiling: DeviceId | None = None

    # ------------------------------------------------------------ drained and wrong

    @rule(device=DEVICES)
    def drain(self, device: DeviceId) -> None:
        is_new = device not in self.draining and device not in self.drained
        assert self.withheld.drain(device, f"pi-{device}", self.now) == is_new
        if is_new:
            self.draining[device] = inf

    @rule(device=DEVICES)
    def replanned(self, device: DeviceId) -> None:
        """It may come late: the device was resumed or withdrawn meanwhile."""
        self.withheld.replanned(device, self.now)
        if device in self.draining:
            self.draining[device] = self.now + PATIENCE_S

    @rule(device=DEVICES)
    def emptied(self, device: DeviceId) -> None:
        assert self.withheld.emptied(device, self.now) == (device in self.draining)
        if self.draining.pop(device, None) is not None:
            self.drained.add(device)

    @rule(device=DEVICES)
    def resume(self, device: DeviceId) -> None:
        self.withheld.resume(device, self.now)
        self.draining.pop(device, None)
        self.drained.discard(device)
        self.out_until_s.pop(device, None)
        self.strikes[device].clear()
        self.back_s.pop(device, None)

    @rule(device=DEVICES, proven=st.sampled_from([False, False, False, True]))
    def wrong(self, device: DeviceId, proven: bool) -> None:
        seconds = self.withheld.wrong(device, "it is off", self.now, proven=proven)
        until_s = self.out_until_s.get(device, -inf)
        if until_s == inf if proven else until_s > self.now or not self.is_too_often(device):
            assert seconds == 0
            return
        assert seconds > 0, "it is still in use"
        assert seconds == inf if proven else seconds <= LAST_S
        self.out_until_s[device] = self.back_s[device] = self.now + seconds
        self.strikes[device].clear()

    def is_too_often(self, device: DeviceId) -> bool:
        """Notes a wrong result; whether it is one too many: any, during probation."""
        self.strikes[device].append(self.now)
        recent = [each for each in self.strikes[device] if self.now - each <= STRIKES_WITHIN_S]
        on_probation = self.now - self.back_s.get(device, -inf) <= PROBATION_S
        return on_probation or len(recent) >= STRIKES

    @rule(seconds=st.sampled_from([0.1, 30.0, 100.0, 400.0, 4000.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        expired = [each for each, until_s in self.draining.items() if until_s <= self.now]
        back = [each for each, until_s in self.out_until_s.items() if until_s <= self.now]
        withdrawn, tried_again = self.withheld.tick(self.now)
        assert (sorted(withdrawn), sorted(tried_again)) == (sorted(expired), sorted(back))
        for device in expired:
            del self.draining[device]
            self.drained.add(device)
        for device in back:
            del self.out_until_s[device]

    # ------------------------------------------------------------ links

    @rule(devices=st.lists(DEVICES, unique=True))
    def want_links(self, devices: list[DeviceId]) -> None:
        cause, was_idle = f"cause {next(self.causes)}", not self.wanted
        found = self.links.want(cause, devices)
        self.wanted.append((cause, devices))
        assert found == (self.next_links() if was_idle else ([], None))

    @precondition(lambda self: self.wanted)
    @rule(rate=st.sampled_from([0.0, 1.0, 1.05, 2.0, 2.1]), disturbed=st.booleans())
    def probed(self, rate: float, disturbed: bool) -> None:
        found = self.links.probed(self.wanted[0][1][0], rate, disturbed=disturbed)
        self.rates.append(-1.0 if disturbed and rate else rate)
        if self.is_measured(self.rates):
            self.rates = []
            del self.wanted[0][1][0]
        assert found == self.next_links()

    @staticmethod
    def is_measured(rates: Sequence[float]) -> bool:
        """Whether these probes of a link are enough; -1 was disturbed."""
        slow, fast = sorted(rates[-2:])[0], max(rates[-2:])
        agree = len(rates) > 1 and slow > 0 and fast <= slow * AGREE
        return rates[-1] == 0 or agree or len(rates) == PROBES_AT_MOST

    def next_links(self) -> tuple[list[str], DeviceId | None]:
        """The causes whose links are all measured, and the device whose link is probed next."""
        causes: list[str] = []
        while self.wanted and not self.wanted[0][1]:
            causes.append(self.wanted.pop(0)[0])
        return causes, self.wanted[0][1][0] if self.wanted else None

    # ------------------------------------------------------------ profiles

    @rule(device=DEVICES)
    def want_profile(self, device: DeviceId) -> None:
        self.to_profile.add(device)
        self.profile(self.kinds.want(device, KINDS[device]))

    @precondition(lambda self: self.profiling)
    @rule(found=st.booleans())
    def profiled(self, found: bool) -> None:
        device, self.profiling = self.profiling, None
        assert device is not None
        following = self.kinds.profiled(device, found=found)
        if found:
            self.to_profile -= {each for each in IDS if KINDS[each] == KINDS[device]}
        self.profile(following)

    def profile(self, device: DeviceId | None) -> None:
        if device is not None:
            assert self.profiling is None, "two are profiled at a time"
            assert device in self.to_profile
            self.to_profile.remove(device)
            self.profiling = device

    # ------------------------------------------------------------ what must hold

    @invariant()
    def a_device_is_out_exactly_while_it_should_be(self) -> None:
        for device in IDS:
            apart = self.withheld.of(device, self.now)
            found = (apart.state, apart.is_out) if apart else ("", False)
            if self.out_until_s.get(device, -inf) > self.now:
                assert found == ("quarantined", True)
            elif device in self.draining:
                assert found == ("draining", False)
            elif device in self.drained:
                assert found == ("drained", True)
            else:
                assert found == ("", False)

    @invariant()
    def who_waits_to_be_measured_is_known(self) -> None:
        assert self.links.unprobed == {device for _, each in self.wanted for device in each}
        assert self.profiling is not None or not self.to_profile, "nobody is profiled"
        for device in IDS:
            wants = device in self.to_profile or device == self.profiling
            assert self.kinds.wants(device) == wants

    def teardown(self) -> None:
        """Once nothing more is wanted, everything is measured, and everybody is back."""
        while self.wanted:
            self.probed(1.0, False)
        while self.profiling:
            self.profiled(True)
        for device in IDS:
            self.resume(device)
        assert (self.withheld.tick(inf), self.links.unprobed) == (([], []), set())
        assert not any(self.withheld.of(device, self.now) for device in IDS)


AnyDevice.TestCase.settings = settings(
    max_examples=150, stateful_step_count=60, suppress_health_check=list(HealthCheck)
)
TestAnyDevice = AnyDevice.TestCase


# ---------------------------------------------------------------- it can fail


@pytest.mark.parametrize(
    ("where", "what", "fault"),
    FAULTS,
    ids=[f"{each[1]}-{getattr(each[2], '__name__', each[2])}" for each in FAULTS],
)
def test_a_fault_is_noticed(
    where: object, what: str, fault: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, what, fault)
    with pytest.raises(AssertionError):
        run_in_any_order(AnyDevice)
