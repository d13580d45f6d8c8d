"""Which messages had the wires to themselves."""

from dataclasses import replace

from coordinator.costs.links import Transfer
from coordinator.devices.lone_transfers import lone_transfers
from coordinator.tasks.timeline import TaskTimes
from tests.requests.sketches import HALVES, A, B, chain, direct_chain


def times(
    task: int, device: str, sent: tuple[float, float], computed: float, back: float
) -> TaskTimes:
    """Sent and ready, started at once, computed, and back; 600 bytes there, 300 back."""
    start, ready = sent
    return TaskTimes(task, 0, device, ready, ready, computed, start, 600, back, 300)


def test_messages_one_after_the_other_are_all_alone() -> None:
    graph = chain([HALVES])
    found = list(
        lone_transfers(
            graph, [times(0, A, (1.0, 1.5), 4.0, 4.25), times(1, B, (2.0, 2.5), 6.0, 6.25)]
        )
    )
    assert found == [
        (A, Transfer(600, 0.5)),
        (B, Transfer(600, 0.5)),
        (A, Transfer(300, 0.25)),
        (B, Transfer(300, 0.25)),
    ]


def test_messages_that_overlap_tell_nothing_of_a_link() -> None:
    graph = chain([HALVES])
    both = [times(0, A, (1.0, 2.0), 4.0, 5.0), times(1, B, (1.5, 2.5), 6.0, 7.0)]
    assert list(lone_transfers(graph, both)) == [(A, Transfer(300, 1.0)), (B, Transfer(300, 1.0))]


def test_a_long_message_covers_all_that_follow_within_it() -> None:
    graph = chain([HALVES])
    both = [times(0, A, (1.0, 9.0), 10.0, 11.0), times(1, B, (2.0, 3.0), 4.0, 5.0)]
    assert list(lone_transfers(graph, both)) == [(A, Transfer(300, 1.0))]


def test_a_task_that_waits_for_peers_does_not_tell_when_the_hosts_part_came() -> None:
    graph = direct_chain([HALVES, HALVES])
    second = times(2, A, (5.0, 7.0), 8.0, 9.0)
    assert list(lone_transfers(graph, [second])) == [(A, Transfer(300, 1.0))]


def test_peer_messages_cross_the_same_wires() -> None:
    graph = direct_chain([HALVES, HALVES])
    tasks = [
        TaskTimes(0, 0, A, 1.5, 1.5, 2.0, 1.0, 600),
        times(1, B, (1.625, 1.875), 3.0, 3.5),
        TaskTimes(2, 0, A, 4.0, 4.0, 5.0),
        TaskTimes(3, 0, B, 4.0, 4.0, 5.0),
    ]
    relayed = [replace(each, relayed=True) for each in tasks]
    assert (B, Transfer(300, 0.5)) in lone_transfers(graph, relayed)
    # B's answer is on its way while both pass their borders on.
    assert list(lone_transfers(graph, tasks)) == [
        (A, Transfer(600, 0.5)),
        (B, Transfer(600, 0.25)),
    ]


def test_tasks_without_messages_tell_nothing() -> None:
    assert list(lone_transfers(chain([HALVES]), [TaskTimes(0, 0, A, 1.0, 1.0, 2.0)])) == []
