from coordinator.execution.timeline import TaskTimes
from coordinator.transfers import transfers


def task(number, device, sent=(0.0, 0.0), returned=(0.0, 0.0), sizes=(0, 0)):
    return TaskTimes(
        task=number,
        attempt=0,
        device=device,
        ready_s=sent[1],
        start_s=sent[1],
        stop_s=returned[0],
        sent_s=sent[0],
        sent_bytes=sizes[0],
        received_s=returned[1],
        received_bytes=sizes[1],
    )


TIMES = [
    task(0, "a", (0.0, 1.0), (5.0, 6.0), (10, 7)),
    task(1, "b", (0.5, 2.0), (6.0, 8.0), (20, 8)),
    task(2, "c", (2.0, 3.0), (7.0, 9.0), (30, 9)),
    task(3, "d", (9.0, 9.5), (11.0, 12.0), (40, 0)),
]


def test_every_transfer_counts_where_links_are_apart():
    found = [
        (each.device, each.size_bytes, each.seconds) for each in transfers(TIMES, shared=False)
    ]
    assert found == [
        ("a", 10, 1.0),
        ("b", 20, 1.5),
        ("c", 30, 1.0),
        ("d", 40, 0.5),
        ("a", 7, 1.0),
        ("b", 8, 2.0),
        ("c", 9, 2.0),
    ]


def test_on_a_shared_medium_only_those_count_that_had_it_to_themselves():
    found = [(each.device, each.size_bytes) for each in transfers(TIMES, shared=True)]
    assert found == [("c", 30), ("d", 40), ("a", 7)]


def test_one_that_lasts_longer_than_the_next_spoils_those_after_it():
    long = [
        task(0, "a", (0.0, 10.0), sizes=(1, 0)),
        task(1, "b", (1.0, 2.0), sizes=(1, 0)),
        task(2, "c", (3.0, 4.0), sizes=(1, 0)),
        task(3, "d", (10.0, 11.0), sizes=(1, 0)),
    ]
    assert [each.device for each in transfers(long, shared=True)] == ["d"]
