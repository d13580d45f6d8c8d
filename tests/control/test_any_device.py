"""Every order of drains, wrong results, probes and profiles that Hypothesis can think of: a device
is out exactly while it should be, and all links and devices are measured, one at a time.
"""

from collections.abc import Callable, Iterator, Sequence
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

from coordinator.control import measurements
from coordinator.control.actions import (
    Action,
    Empty,
    LeaveOut,
    ProbeLink,
    ProfileDevice,
    Replan,
    Withdraw,
)
from coordinator.control.events import (
    Drained,
    Emptied,
    Event,
    LinksWanted,
    Probed,
    Profiled,
    ProfileWanted,
    Replanned,
    Resumed,
    Tick,
    Wrong,
)
from coordinator.control.measurements import AGREE, PROBES_AT_MOST, Kinds, Links
from coordinator.control.quarantine import (
    LAST_S,
    PROBATION_S,
    STRIKES,
    STRIKES_WITHIN_S,
    Quarantine,
)
from coordinator.control.withheld import PATIENCE_S, Withheld
from protos.wire.facts import DeviceId
from tests.control.any_order import run_in_any_order

A, B, C = IDS = tuple(map(DeviceId, "abc"))
KINDS = {A: "pi 4", B: "pi 4", C: "pi 5"}
DEVICES = st.sampled_from(IDS)


class AnyDevice(RuleBasedStateMachine):
    """What the machines said of each device, and what was measured."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.withheld = Withheld({})
        # Until when a draining device may finish, a device in quarantine is out, and the last
        # quarantine of each lasted.
        self.draining: dict[DeviceId, float] = {}
        self.drained: set[DeviceId] = set()
        self.out_until_s: dict[DeviceId, float] = {}
        self.strikes: dict[DeviceId, list[float]] = {device: [] for device in IDS}
        self.back_s: dict[DeviceId, float] = {}
        self.links = Links()
        self.causes = count(1)
        self.wanted: list[tuple[str, list[DeviceId]]] = []
        self.rates: list[float] = []
        self.kinds = Kinds()
        self.to_profile: set[DeviceId] = set()
        self.profiling: DeviceId | None = None

    # ------------------------------------------------------------ drained and wrong

    def step(self, event: Event) -> list[Action]:
        return self.withheld.step(event, self.now)

    @rule(device=DEVICES)
    def drain(self, device: DeviceId) -> None:
        is_new = device not in self.draining and device not in self.drained
        expected = [Replan(f"{device} is drained"), Empty(device)] if is_new else []
        assert self.step(Drained(device, f"pi-{device}")) == expected
        if is_new:
            self.draining[device] = inf

    @rule(device=DEVICES)
    def replanned(self, device: DeviceId) -> None:
        """It may come late: the device was resumed or withdrawn meanwhile."""
        assert self.step(Replanned(device)) == []
        if device in self.draining:
            self.draining[device] = self.now + PATIENCE_S

    @rule(device=DEVICES)
    def emptied(self, device: DeviceId) -> None:
        expected = [Withdraw(device)] if device in self.draining else []
        assert self.step(Emptied(device)) == expected
        if self.draining.pop(device, None) is not None:
            self.drained.add(device)

    @rule(device=DEVICES)
    def resume(self, device: DeviceId) -> None:
        assert self.step(Resumed(device)) == [Replan(f"{device} is resumed")]
        self.draining.pop(device, None)
        self.drained.discard(device)
        self.out_until_s.pop(device, None)
        self.strikes[device].clear()
        self.back_s.pop(device, None)

    @rule(device=DEVICES, proven=st.sampled_from([False, False, False, True]))
    def wrong(self, device: DeviceId, proven: bool) -> None:
        found = self.step(Wrong(device, "it is off", proven))
        until_s = self.out_until_s.get(device, -inf)
        if until_s == inf if proven else until_s > self.now or not self.is_too_often(device):
            assert found == []
            return
        assert len(found) == 2, "it is still in use"
        left_out, replan = found
        assert isinstance(left_out, LeaveOut)
        assert (left_out.device, replan) == (device, Replan(f"{device} is quarantined"))
        assert left_out.seconds == inf if proven else left_out.seconds <= LAST_S
        self.out_until_s[device] = self.back_s[device] = self.now + left_out.seconds
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
        expected: list[Action] = [Withdraw(each) for each in expired]
        expected += [Replan(f"{each} is tried again") for each in back]
        assert sorted(map(str, self.step(Tick()))) == sorted(map(str, expected))
        for device in expired:
            del self.draining[device]
            self.drained.add(device)
        for device in back:
            del self.out_until_s[device]

    # ------------------------------------------------------------ links

    @rule(devices=st.lists(DEVICES, unique=True))
    def want_links(self, devices: list[DeviceId]) -> None:
        cause, was_idle = f"cause {next(self.causes)}", not self.wanted
        found = self.links.step(LinksWanted(cause, tuple(devices)), self.now)
        self.wanted.append((cause, devices))
        assert found == (self.next_links() if was_idle else [])

    @precondition(lambda self: self.wanted)
    @rule(rate=st.sampled_from([0.0, 1.0, 1.05, 2.0, 2.1]), disturbed=st.booleans())
    def probed(self, rate: float, disturbed: bool) -> None:
        found = self.links.step(Probed(self.wanted[0][1][0], rate, disturbed), self.now)
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

    def next_links(self) -> list[Action]:
        found: list[Action] = []
        while self.wanted and not self.wanted[0][1]:
            found.append(Replan(self.wanted.pop(0)[0]))
        return [*found, ProbeLink(self.wanted[0][1][0])] if self.wanted else found

    # ------------------------------------------------------------ profiles

    @rule(device=DEVICES)
    def want_profile(self, device: DeviceId) -> None:
        self.to_profile.add(device)
        self.profile(self.kinds.step(ProfileWanted(device, KINDS[device]), self.now))

    @precondition(lambda self: self.profiling)
    @rule(found=st.booleans())
    def profiled(self, found: bool) -> None:
        device, self.profiling = self.profiling, None
        assert device is not None
        actions = self.kinds.step(Profiled(device, found), self.now)
        if found:
            self.to_profile -= {each for each in IDS if KINDS[each] == KINDS[device]}
        self.profile(actions)

    def profile(self, actions: list[Action]) -> None:
        for action in actions:
            assert isinstance(action, ProfileDevice)
            assert self.profiling is None, "two are profiled at a time"
            assert action.device in self.to_profile
            self.to_profile.remove(action.device)
            self.profiling = action.device

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
    def it_wakes_in_time(self) -> None:
        ends = [*self.draining.values(), *self.out_until_s.values()]
        assert self.withheld.due_s == min(ends, default=inf)

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
        assert (self.withheld.due_s, self.links.unprobed) == (inf, set())
        assert not any(self.withheld.of(device, self.now) for device in IDS)


AnyDevice.TestCase.settings = settings(
    max_examples=150, stateful_step_count=60, suppress_health_check=list(HealthCheck)
)
TestAnyDevice = AnyDevice.TestCase


# ---------------------------------------------------------------- it can fail


def never_withdraws(withheld: Withheld, now: float) -> Iterator[Action]:
    """Draining has no end while something runs on the device."""
    for device in [each for each, until_s in withheld._back_s.items() if until_s <= now]:
        del withheld._back_s[device]
        yield Replan(f"{device} is tried again")


def convicts_at_once(
    withheld: Withheld, device: DeviceId, cause: str, now: float, *, proven: bool
) -> Iterator[Action]:
    """The first wrong result is taken as a proof."""
    withheld._quarantine.convict(device, cause)
    withheld._back_s[device] = inf
    yield LeaveOut(device, cause, inf)
    yield Replan(f"{device} is quarantined")


def probes_all(links: Links) -> Iterator[Action]:
    """All links of a cause are probed at the same time."""
    while links._wanted and not links._wanted[0][1]:
        yield Replan(links._wanted.popleft()[0])
    if links._wanted:
        yield from map(ProbeLink, links._wanted[0][1])


def profiles_beside(kinds: Kinds, event: Event, now: float) -> Iterator[Action]:
    """Whoever wants to is profiled at once."""
    if isinstance(event, ProfileWanted):
        kinds._current = event.device, event.kind
        yield ProfileDevice(event.device)
    else:
        kinds._current = None


def forgets_others(kinds: Kinds, event: Event, now: float) -> Iterator[Action]:
    """Once a profile is found, nobody else is profiled."""
    yield from GIVEN(kinds, event, now)
    if isinstance(event, Profiled):
        kinds._wanted.clear()


GIVEN = Kinds._react
FAULTS: list[tuple[object, str, object]] = [
    (Withheld, "_tick", never_withdraws),
    (Withheld, "_wrong", convicts_at_once),
    (Quarantine, "pardon", lambda *_: None),
    (Quarantine, "accuse", lambda *_: 0.0),
    (Links, "_go_on", probes_all),
    (measurements, "PROBES_AT_MOST", PROBES_AT_MOST + 1),
    (measurements, "AGREE", 3.0),
    (Kinds, "_react", profiles_beside),
    (Kinds, "_react", forgets_others),
]


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
