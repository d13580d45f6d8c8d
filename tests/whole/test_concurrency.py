"""Workers that compute several tasks at once: planned so, and the answer is the whole model's."""

from tests.cluster.support import worker_process
from tests.whole.cluster import assert_right, coordinator, question

MODEL = "digits"


async def test_two_at_once_answer_right(tmp_path) -> None:
    feeds, whole = question(MODEL)
    async with (
        worker_process(tmp_path / "two", CONCURRENCY="2", THREADS="1") as two,
        worker_process(tmp_path / "one", PACE="0.05") as one,
        coordinator(tmp_path / "host", [two.address, one.address], "halo") as host,
    ):
        by_id = {each.id: each for each in host.devices()}
        assert (by_id[two.id].threads, by_id[two.id].concurrency) == (1, 2)
        assert (by_id[one.id].threads, by_id[one.id].concurrency) == (1, 1)
        for _ in range(3):
            answer = await host.infer(MODEL, feeds)
            assert_right(answer, whole)
            assert not answer.retried_tasks
        plan = host._controller.plans.graph(MODEL).plan
        assert any(sum(t.device == two.id for t in block.tiles) > 1 for block in plan.blocks)
