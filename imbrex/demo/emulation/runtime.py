"""onnxruntime as on Arm, whose runs know which program they are of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from imbrex.demo.emulation.whole_maps import ProgramRun, any_rows
from models.cut.program import Program
from models.cut.whole import whole_network
from worker.engines.base import Place, ProgramCache, Ready, Runnable
from worker.engines.onnxruntime import OnnxRuntime
from worker.engines.ort_session import BLOCKED_LAYOUT


class EmulatedRuntime(OnnxRuntime):
    """Without the layout that onnxruntime has for x86-64 alone."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, (BLOCKED_LAYOUT,))
        self._programs = ProgramCache(place.store)

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
        return _Session(session, program) if session and program else None

    def trial(self, program: Program, weights: Mapping[str, np.ndarray], threads: int) -> Runnable:
        """As of any engine; what is no whole network takes maps of any size."""
        if whole_network(program) is None:
            program = any_rows(program)
        return _Session(super().trial(program, weights, threads), program)


class _Session(Runnable):
    """A session and its program."""

    def __init__(self, session: Runnable, program: Program) -> None:
        super().__init__(session.inputs, session.outputs, session.blobs)
        self._session = session
        self._program = program

    def _bind(
        self, inputs: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...] | None]
    ) -> Ready[dict[str, np.ndarray]]:
        ready = self._session.bound(inputs, shapes)
        return ProgramRun(
            ready.compute,
            ready.weight_bytes,
            ready.kernels,
            program=self._program,
            session=self._session,
            inputs=inputs,
        )
