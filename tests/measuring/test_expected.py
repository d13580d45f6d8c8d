"""How long a task may take: the wire is its whole block's."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from coordinator.costs.cluster import Device
from coordinator.costs.sketch import ProgramBuilder
from coordinator.devices.expected import LiveExpectations
from coordinator.devices.measured import DeviceMeasurements
from coordinator.tasks.task_graph import TaskGraph
from models.cut.program import Program, WeightRef
from models.tensors.memory import PROCESS_BYTES, PROGRAM_BYTES
from tests.planning.clusters import device
from tests.requests.sketches import HALVES, A, B, chain

READ_BYTES, MADE_BYTES = 14 * 4, 12 * 4  # of both halves, each with an element of the other


def graph(*blocks: list[tuple[int, int]]) -> TaskGraph:
    sketch = ProgramBuilder(1, 8, 32, 32)
    sketch.conv(16, 3)
    made = chain(list(blocks))
    return replace(made, works=(sketch.measurable().works,) * len(made.tasks))


def expectations(measured: DeviceMeasurements, known: Device, pool: object) -> LiveExpectations:
    """Of one device."""
    return LiveExpectations(
        SimpleNamespace(measured=measured, pool=pool, known=lambda _: known)  # type: ignore[arg-type]
    )


def test_expected_time_includes_all_transfers_of_its_block() -> None:
    measured = DeviceMeasurements()
    expected = expectations(measured, device("a"), None)
    halves = graph(HALVES, HALVES)
    computing_s = measured.computing_s(halves, 0, A, lambda _: device("a"))
    assert computing_s is not None
    link = measured.link(A)
    whole_s = link.transfer_s(READ_BYTES) + computing_s + link.transfer_s(MADE_BYTES)
    for task, there in ((0, A), (1, B), (2, A), (3, B)):
        assert expected.task_s(halves, task, there) == pytest.approx(whole_s)


def test_a_device_has_room_for_a_program_beside_its_own() -> None:
    """Two programs of 30 MB each, one of which is laid out, and what any worker takes."""
    refs = tuple(WeightRef(f"w{k}", f"{k}", 1, (7_500_000,)) for k in range(2))
    halves = graph(HALVES)
    names = [task.program for task in halves.tasks]
    programs = {name: Program(b"", (ref,)) for name, ref in zip(names, refs, strict=True)}
    halves = replace(halves, programs=programs)
    enough_mb = (PROCESS_BYTES + 2 * PROGRAM_BYTES) / 1e6 + 3 * 30

    def has_room(memory_mb: float, *, has: bool = False) -> bool:
        known = device("a", memory_mb=memory_mb)
        pool = SimpleNamespace(
            get=lambda _: SimpleNamespace(programs=SimpleNamespace(ready=names if has else []))
        )
        expected = expectations(DeviceMeasurements(), known, pool)
        return expected.has_room(halves, 1, A)

    assert has_room(enough_mb)
    assert not has_room(enough_mb - 1)
    assert has_room(enough_mb - 1, has=True)
    assert has_room(0), "its memory is not known"
