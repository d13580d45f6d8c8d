"""How long a task may take: the wire is its whole block's."""

from dataclasses import replace

import pytest

from coordinator.costs.sketch import Sketch
from coordinator.measuring.expected import LiveExpectations
from coordinator.measuring.measured import Measured
from coordinator.tasks.graph import TaskGraph
from tests.execution.sketches import HALVES, A, B, chain
from tests.planning.clusters import device

READ_BYTES, MADE_BYTES = 14 * 4, 12 * 4  # of both halves, each with an element of the other


def graph(*blocks: list[tuple[int, int]]) -> TaskGraph:
    sketch = Sketch(1, 8, 32, 32)
    sketch.conv(16, 3)
    made = chain(list(blocks))
    return replace(made, works=(sketch.measurable().works,) * len(made.tasks))


def test_what_its_block_sends_and_gets_may_pass_before_a_task() -> None:
    measured = Measured()
    expected = LiveExpectations(measured, lambda _: device("a"), lambda *_: True)
    halves = graph(HALVES, HALVES)
    computing_s = measured.computing_s(halves, 0, A, lambda _: device("a"))
    assert computing_s is not None
    link = measured.link(A)
    whole_s = link.transfer_s(READ_BYTES) + computing_s + link.transfer_s(MADE_BYTES)
    for task, there in ((0, A), (1, B), (2, A), (3, B)):
        assert expected.task_s(halves, task, there) == pytest.approx(whole_s)
