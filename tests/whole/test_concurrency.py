"""Workers that compute several tasks at once: planned so, and the answer is the whole model's."""

import asyncio

from coordinator.service import Coordinator
from tests.devices.support import worker_process
from tests.whole.cluster import assert_right, coordinator, question

MODEL = "digits"


async def test_worker_with_two_tasks_at_once_answers_right(tmp_path) -> None:
    feeds, whole = question(MODEL)
    async with (
        worker_process(tmp_path / "two", CONCURRENCY="2", THREADS="1") as two,
        worker_process(tmp_path / "one", PACE="0.05") as one,
        coordinator(tmp_path / "host", [two.address, one.address], "halo") as host,
    ):
        by_id = {each.id: each for each in host.device_statuses()}
        assert (by_id[two.id].threads, by_id[two.id].concurrency) == (1, 2)
        assert (by_id[one.id].threads, by_id[one.id].concurrency) == (1, 1)
        answered = 0
        async with asyncio.timeout(60):  # the first plans may not know yet how fast the links are
            while answered < 3:
                answered += computes_two_at_once(host, two.id)
                answer = await host.infer(MODEL, feeds)
                assert_right(answer, whole)
                assert not answer.retried_tasks


def computes_two_at_once(host: Coordinator, device: str) -> bool:
    """The plan in force gives this device more than one tile of a block."""
    graph = host.plans.book.graph(MODEL)
    return graph is not None and any(
        sum(tile.device == device for tile in block.tiles) > 1 for block in graph.plan.blocks
    )
