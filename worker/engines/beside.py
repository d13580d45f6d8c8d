"""Programs of an engine with onnxruntime's beside them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Protocol, TypeAlias

import numpy as np

from worker.engines.base import Ready, Runnable
from worker.engines.comparison import ReferenceRun

# Shapes of one program: uneven tiles of a border class differ.
_MOST_SHAPES = 8

_Shapes: TypeAlias = tuple[tuple[int, ...], ...]


class Owner(Protocol):
    """The engine that compares runs."""

    def asks(self, sha256: str) -> str:
        """For what a run of this program is to be compared; empty: for nothing."""
        ...

    def offer(self, program: "BesideProgram", case: ReferenceRun) -> bool:
        """Takes a run to compare; False if it cannot."""
        ...

    def failed(self, sha256: str, error: Exception) -> None:
        """A run by the engine failed."""
        ...


class BesideProgram(Runnable):
    """A program of onnxruntime's, and the engine's for shapes for which it has been checked."""

    def __init__(self, owner: Owner, sha256: str, reference: Runnable) -> None:
        super().__init__(reference.inputs, reference.outputs, reference.blobs)
        self.reference = reference
        self._owner = owner
        self._sha256 = sha256
        # The engine that was asked for last.
        self._engine = ""
        self._checked: dict[tuple[str, _Shapes], Runnable] = {}
        # What has been offered, for which engine.
        self._offered: set[tuple[str, _Shapes]] = set()

    def take(self, engine: str, case: ReferenceRun, runnable: Runnable) -> None:
        """Has the engine of this name compute runs like this one."""
        self._checked[engine, self._shapes(case.inputs)] = runnable

    def _shapes(self, inputs: Mapping[str, np.ndarray]) -> _Shapes:
        return tuple(inputs[name].shape for name in self.inputs)

    def _bind(
        self, inputs: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...] | None]
    ) -> Ready[dict[str, np.ndarray]]:
        plain = partial(self.reference.bound, inputs, shapes)
        if None in shapes.values():  # what depends on values stays with onnxruntime
            return plain()
        key = (self._owner.asks(self._sha256), self._shapes(inputs))
        if key[0] != self._engine:
            # What another engine has compiled takes memory.
            self._engine = key[0]
            self._checked.clear()
        engine = self._checked.get(key) if key[0] else None
        if engine is not None:
            return _bound_or_else(engine, inputs, shapes, plain, self._failed)
        ready = plain()
        if key[0] and key not in self._offered and len(self._offered) < _MOST_SHAPES:
            return replace(ready, compute=partial(self._watched, ready, inputs, key))
        return ready

    def _watched(
        self,
        ready: Ready[dict[str, np.ndarray]],
        inputs: Mapping[str, np.ndarray],
        key: tuple[str, _Shapes],
    ) -> dict[str, np.ndarray]:
        began_s = time.perf_counter()
        outputs = ready.compute()
        seconds = time.perf_counter() - began_s
        # The inputs are untouched until this returns; the outputs are read only.
        copies = {name: array.copy() for name, array in inputs.items()}
        if self._owner.offer(self, ReferenceRun(self._sha256, copies, outputs, seconds)):
            self._offered.add(key)
        return outputs

    def _failed(self, error: Exception) -> None:
        self._owner.failed(self._sha256, error)


class OrElse(Runnable):
    """A program of an engine's, and onnxruntime's (`plain`) where that fails."""

    def __init__(self, engine: Runnable, plain: Callable[[], Runnable]) -> None:
        super().__init__(engine.inputs, engine.outputs, engine.blobs)
        self._engine = engine
        self._plain = cache(plain)

    def _bind(
        self, inputs: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...] | None]
    ) -> Ready[dict[str, np.ndarray]]:
        return _bound_or_else(
            self._engine, inputs, shapes, lambda: self._plain().bound(inputs, shapes), None
        )


def _bound_or_else(
    engine: Runnable,
    inputs: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...] | None],
    plain: Callable[[], Ready[dict[str, np.ndarray]]],
    failed: Callable[[Exception], None] | None,
) -> Ready[dict[str, np.ndarray]]:
    """A run by the engine, and by onnxruntime if that fails."""

    def instead(error: Exception) -> Ready[dict[str, np.ndarray]]:
        if failed is not None:
            failed(error)
        return plain()

    try:
        ready = engine.bound(inputs, shapes)
    except Exception as error:
        return instead(error)

    def compute() -> dict[str, np.ndarray]:
        try:
            return ready.compute()
        except Exception as error:
            return instead(error).compute()

    return replace(ready, compute=compute)
