"""Passes events and the time to the machines of `control`, and executes their actions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from math import inf

from coordinator.plans.actions import Action
from coordinator.plans.events import Event, Tick
from coordinator.plans.machine import ControlMachine


class Stepper:
    """Steps machines, and wakes each when it is due; `act` executes an action. `stepped` is
    notified after each step, for tasks that wait for a state.
    """

    def __init__(self, act: Callable[[Action], None]) -> None:
        self._act = act
        # With when they are due: uvloop's handle of what is due already does not say.
        self._timers: dict[ControlMachine, tuple[float, asyncio.Handle]] = {}
        self._closed = False
        self.stepped = asyncio.Event()

    def step(self, event: Event, *machines: ControlMachine) -> None:
        """Passes one event to the given machines in order."""
        now = time.monotonic()
        for machine in machines:
            for action in machine.step(event, now):
                self._act(action)
            self._wake(machine)
        self.stepped.set()
        self.stepped.clear()

    def close(self) -> None:
        """Cancels all wake-ups."""
        self._closed = True
        for _, timer in self._timers.values():
            timer.cancel()

    def _wake(self, machine: ControlMachine) -> None:
        due_s = machine.due_s
        set_s, timer = self._timers.get(machine, (inf, None))
        if timer is not None and set_s != due_s:
            del self._timers[machine]
            timer.cancel()
        if machine not in self._timers and due_s < inf and not self._closed:
            loop = asyncio.get_running_loop()
            self._timers[machine] = due_s, loop.call_at(due_s, self._tick, machine)

    def _tick(self, machine: ControlMachine) -> None:
        del self._timers[machine]
        self.step(Tick(), machine)
