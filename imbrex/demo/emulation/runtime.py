"""The engines of an emulated device: onnxruntime as on Arm and others. Its runs know which program
they are of, and how other engines would compute it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from coordinator.costs.affine import EngineCosts
from coordinator.costs.rates import RateCosts
from imbrex.demo.emulation.whole_maps import ProgramRun, any_rows
from models.cut.program import Program, whole_network
from models.tensors.arrays import Arrays
from protos.errors import ImbrexError
from worker.compute.compute import REAL
from worker.engines.base import Place, ProgramCache, Ready, Runnable, Trial
from worker.engines.onnxruntime import OnnxRuntime
from worker.engines.ort_session import BLOCKED_LAYOUT
from worker.engines.registry import factory_of
from worker.programs.graphs import weight_bytes


class EmulatedRuntime(OnnxRuntime):
    """onnxruntime without the layout that it has for x86-64 alone, and the other engines of
    `costs`. Setting a run up takes `set_up_s`.

    Raises:
        BadConfiguration: one of them is not installed.
    """

    def __init__(self, place: Place, costs: RateCosts, set_up_s: float = 0.0) -> None:
        super().__init__(place, (BLOCKED_LAYOUT,))
        self._set_up_s = set_up_s
        self._place = place
        self._programs = ProgramCache(place.store)
        self._costs = costs
        self._others = {other.engine: factory_of(other.engine)(place) for other in costs.others}

    def is_prepared(self, sha256: str) -> bool:
        """As of any engine; after a start, a program has to arrive again."""
        return sha256 in self._programs and super().is_prepared(sha256)

    def prepare(self, program: Program) -> None:
        """As of any engine."""
        self._programs.add(program)
        super().prepare(program)

    def load(self, sha256: str) -> Runnable | None:
        """As of any engine."""
        session, program = super().load(sha256), self._programs.get(sha256)
        if session is None or program is None:
            return None
        weights = self._programs.weights(program)
        return self._by_every_engine(program, session, weights, self._place.threads)

    def trial(self, program: Program, weights: Arrays, threads: int) -> Runnable:
        """As of any engine; what is no whole network takes maps of any size."""
        program = _any_rows(program)
        session = super().trial(program, weights, threads)
        return self._by_every_engine(program, session, weights, threads)

    @property
    def trials(self) -> Mapping[str, Trial]:
        """A trial of each engine, by its name."""
        return {costs.engine: partial(self._trial_of, costs) for costs in self._costs.engines}

    def _trial_of(
        self, costs: EngineCosts, program: Program, weights: Arrays, threads: int
    ) -> Runnable:
        program = _any_rows(program)
        other = self._others.get(costs.engine)
        trial = other.trial if other else super().trial
        sessions = [(costs, trial(program, weights, threads))]
        return _EmulatedProgram(program, sessions, self._set_up_s)

    def _by_every_engine(
        self, program: Program, session: Runnable, weights: Arrays, threads: int
    ) -> Runnable:
        """The program by onnxruntime's session, and by each other engine that takes it."""
        sessions: list[tuple[EngineCosts, Runnable]] = [(self._costs, session)]
        for costs in self._costs.others:
            with suppress(ImbrexError):
                other = self._others[costs.engine].trial(program, weights, threads)
                sessions.append((costs, other))
        return _EmulatedProgram(program, sessions, self._set_up_s)


class _EmulatedProgram(Runnable):
    """A program, and its session by each engine; the first one computes all."""

    def __init__(
        self,
        program: Program,
        sessions: Sequence[tuple[EngineCosts, Runnable]],
        set_up_s: float,
    ) -> None:
        first = sessions[0][1]
        super().__init__(first.inputs, first.outputs, first.blobs)
        self._program = program
        self._sessions = sessions
        self._set_up_s = set_up_s

    def _bind(
        self, inputs: Arrays, shapes: Mapping[str, tuple[int, ...] | None]
    ) -> Ready[dict[str, np.ndarray]]:
        begun_s = REAL.now_s()
        first, *others = (
            partial(self._run, costs, session, inputs, shapes) for costs, session in self._sessions
        )
        ready = first(others)
        REAL.sleep_until(begun_s + self._set_up_s)
        return ready

    def _run(
        self,
        costs: EngineCosts,
        session: Runnable,
        inputs: Arrays,
        shapes: Mapping[str, tuple[int, ...] | None],
        others: Sequence[Callable[[], ProgramRun[dict[str, np.ndarray]]]] = (),
    ) -> ProgramRun[dict[str, np.ndarray]]:
        ready = session.bound(inputs, shapes)
        sizes = (inputs[name].shape for name in self.inputs)
        return ProgramRun(
            ready.compute,
            ready.weight_bytes or sum(map(weight_bytes, self._program.weights)),
            ready.kernels or (f"{costs.engine} {self._program.sha256}", *sizes),
            program=self._program,
            session=session,
            inputs=inputs,
            costs=costs,
            others=others,
        )


def _any_rows(program: Program) -> Program:
    return any_rows(program) if whole_network(program) is None else program
