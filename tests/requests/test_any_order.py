"""Every order of arrivals, losses, stalls, late and doubled results, joins and plan switches that
Hypothesis can think of: a request ends exactly once, with the right answer or one clear error, and
leaves nothing behind.
"""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from coordinator.tasks.events import (
    Cancelled,
    Delivered,
    Failed,
    Joined,
    Received,
    ResultRefused,
    Tick,
)
from coordinator.tasks.runs import Judge
from coordinator.tasks.scheduler import MAX_FAILURES, Scheduler
from coordinator.tasks.task_graph import TaskGraph
from models.tensors.boxes import Box
from tests.requests.sketches import (
    HALVES,
    chain,
    device,
    direct_chain,
    ends_with_barrier,
    from_constants,
)
from tests.requests.world import Expected, World, answer

THIRDS = [(0, 4), (4, 8), (8, 12)]
WHOLE = [(0, 12)]
PLANS: dict[str, TaskGraph] = {
    "barriers": chain([THIRDS, HALVES, THIRDS, WHOLE]),
    "as they come": chain([THIRDS, HALVES, THIRDS, WHOLE], barrier=False),
    "peers": direct_chain([THIRDS, THIRDS, HALVES]),
    "peers, then a barrier": ends_with_barrier([THIRDS, HALVES, WHOLE]),
    "from constants": from_constants(chain([HALVES, THIRDS])),
    "from constants, peers": from_constants(direct_chain([THIRDS, HALVES])),
}
NAMES = st.sampled_from("abc")


class AnyOrder(RuleBasedStateMachine):
    scheduler = Scheduler

    @initialize()
    def begin(self) -> None:
        self.world = World(self.scheduler(Expected()))
        for name in "abc":
            self.world.join(device(name), Joined(device(name)))
        self.failures: Counter[tuple[str, int]] = Counter()
        self.strange: set[tuple[str, int]] = set()
        self.wrong_ones: set[str] = set()
        self.was_empty = False

    # ------------------------------------------------------------ the normal course

    @rule(kind=st.sampled_from(sorted(PLANS)))
    def submit(self, kind: str) -> None:
        self.world.submit(PLANS[kind])

    @precondition(lambda self: self.world.full_jobs())
    @rule(data=st.data(), halves=st.booleans())
    def compute(self, data: st.DataObject, halves: bool) -> None:
        self.world.compute(*data.draw(st.sampled_from(self.world.full_jobs())), halves)

    @precondition(lambda self: self.world.messages)
    @rule(data=st.data(), again=st.booleans())
    def deliver(self, data: st.DataObject, again: bool) -> None:
        index = data.draw(st.integers(0, len(self.world.messages) - 1))
        message = self.world.messages[index]
        if not again:
            self.world.messages.pop(index)
        self.world.deliver(message)

    @precondition(lambda self: self.world.all_jobs())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        _, job = data.draw(st.sampled_from(self.world.all_jobs()))
        self.world.step(Delivered(*job.key))

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.step(Tick())

    # ------------------------------------------------------------ what goes wrong

    @precondition(lambda self: any(each.to for each in self.world.messages))
    @rule(data=st.data())
    def peers_lose_each_other(self, data: st.DataObject) -> None:
        to = data.draw(st.sampled_from([each.to for each in self.world.messages if each.to]))
        self.world.messages = [each for each in self.world.messages if each.to != to]

    @precondition(lambda self: self.world.full_jobs())
    @rule(data=st.data(), code=st.sampled_from(["runtime", "no_program", "send", "out_of_memory"]))
    def fail(self, data: st.DataObject, code: str) -> None:
        name, job = data.draw(st.sampled_from(self.world.full_jobs()))
        self.world.jobs[name].pop(job.key)
        self.failures[job.key[:2]] += 1
        self.world.step(Failed(*job.key, code, "no"))

    @precondition(lambda self: self.world.full_jobs())
    @rule(data=st.data(), how=st.sampled_from(["type", "box", "tensor", "not finite"]))
    def wrong(self, data: st.DataObject, how: str) -> None:
        name, job = data.draw(st.sampled_from(self.world.full_jobs()))
        if how == "not finite" and job.key[:2] in self.strange:
            return  # a second time it is believed
        self.failures[job.key[:2]] += 1
        output = job.spec.outputs[0]
        event = {
            "type": ResultRefused(*job.key, "int8"),
            "box": Received(*job.key, output.tensor, Box.of((0, 13))),
            "tensor": Received(*job.key, "t99", output.box),
            "not finite": Received(*job.key, output.tensor, output.box, finite=False),
        }[how]
        if how == "not finite":
            self.strange.add(job.key[:2])
        self.wrong_ones.add(name)
        self.world.step(event, dict.fromkeys(range(12), -1))

    @rule(name=NAMES)
    def lose(self, name: str) -> None:
        self.world.lose(device(name))
        self.was_empty |= not self.world.state.devices

    @rule(name=NAMES)
    def join(self, name: str) -> None:
        self.world.join(device(name), Joined(device(name)))

    @precondition(lambda self: self.world.state.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.world.state.requests)))
        self.world.step(Cancelled(request))
        self.world.ends[request].append("cancelled")

    # ------------------------------------------------------------ what must hold

    @invariant()
    def every_request_ends_once(self) -> None:
        if not hasattr(self, "world"):
            return
        for request, ends in self.world.ends.items():
            assert len(ends) == (request not in self.world.state.requests), ends

    @invariant()
    def answers_are_right_and_errors_have_a_cause(self) -> None:
        if not hasattr(self, "world"):
            return
        for request, ends in self.world.ends.items():
            graph = self.world.graphs[request]
            if ends == ["complete"]:
                memory = self.world.memory[request]
                assert memory[graph.outputs[0]] == answer(graph, memory["t0"])
            elif ends and ends != ["cancelled"]:
                failed = [self.failures[request, task.id] for task in graph.tasks]
                waited = "got no result" in ends[0] and self.world.now > 60
                assert self.was_empty or max(failed) >= MAX_FAILURES or waited, ends

    @invariant()
    def only_devices_that_are_there_are_used(self) -> None:
        if not hasattr(self, "world"):
            return
        for run in self.world.state.requests.values():
            assert set(run.touched) <= set(self.world.state.devices)
            used = {each.device for task in run.tasks for each in task.attempts.values()}
            assert used <= set(run.touched)

    @invariant()
    def only_devices_that_were_wrong_are_accused(self) -> None:
        if hasattr(self, "world"):
            assert self.world.accused <= self.wrong_ones

    def teardown(self) -> None:
        """Once nothing more goes wrong, everything ends, and nothing is left."""
        if not hasattr(self, "world"):
            return
        world, state = self.world, self.world.state
        world.join(device("a"), Joined(device("a")))
        for _ in range(200):
            if not state.requests:
                break
            ready = world.full_jobs()
            if not ready and not world.messages:
                world.now += 20.0
                world.step(Tick())
            for name, job in ready:
                if job.key in world.jobs.get(name, {}) and job.full:
                    world.compute(name, job)
            while world.messages:
                world.deliver(world.messages.pop(0))
        assert not state.requests, "it hangs"
        self.every_request_ends_once()
        self.answers_are_right_and_errors_have_a_cause()
        assert not world.all_jobs(), "devices keep what nobody wants"
        assert set(state._watch.heard_s) <= set(state.devices)


AnyOrder.TestCase.settings = settings(
    max_examples=150, stateful_step_count=60, suppress_health_check=list(HealthCheck)
)
TestAnyOrder = AnyOrder.TestCase


# ---------------------------------------------------------------- it can fail


class ForgetsOrphans(Scheduler):
    """What a lost device computed is not computed again."""

    def _go_on(self, request, run, tasks):
        return iter(())


class Credulous(Judge):
    def _believes(self, run, task, device):
        return True


class TakesAnything(Scheduler):
    """Values that are not finite are always believed."""

    def __init__(self, expectations=None):
        super().__init__(expectations)
        self._judge = Credulous()


class NeverLate(Scheduler):
    """Nothing is overdue."""

    def _help_overdue(self, request, run):
        return iter(())


class ReleasesNothing(Scheduler):
    """Devices keep what they have."""

    def _end(self, request):
        del self.requests[request]
        return iter(())


@pytest.mark.parametrize("faulty", [ForgetsOrphans, TakesAnything, NeverLate, ReleasesNothing])
def test_a_planted_fault_is_found(faulty: type[Scheduler]) -> None:
    class Planted(AnyOrder):
        scheduler = faulty

    # No shrinking: that it fails is enough.
    quick = settings(
        AnyOrder.TestCase.settings,
        max_examples=1000,
        stateful_step_count=25,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Planted, settings=quick)
