from coordinator.requests.trace import Lived, chrome_trace
from coordinator.tasks.timeline import Passed, Sketch, TaskTimes


def lived(tasks, passed=(), blocks=(0, 1)):
    sketch = Sketch(blocks, tuple(passed))
    return Lived("r", "m", 10.0, 10.5, 20.0, tasks, sketch, {"a": "pi-1", "b": "pi-2"})


def rows(trace):
    names = {
        (each["pid"], each["tid"]): each["args"]["name"]
        for each in trace["traceEvents"]
        if each["name"] == "thread_name"
    }
    return [
        (names[each["pid"], each["tid"]], each["name"], each["ts"], each["dur"])
        for each in trace["traceEvents"]
        if each["ph"] == "X"
    ]


def test_every_part_of_a_request_is_a_bar_in_microseconds_from_its_arrival():
    scattered = TaskTimes(0, 0, "a", 11.0, 11.5, 13.0, sent_s=10.6, sent_bytes=8)
    gathered = TaskTimes(1, 0, "b", 14.0, 14.0, 15.0, received_s=16.0, received_bytes=4)
    trace = chrome_trace(lived([scattered, gathered], [Passed(0, 1, 6)]))
    assert sorted(rows(trace)) == [
        ("host to pi-1", "scatter 0", 0.6e6, 0.4e6),
        ("pi-1", "block 0", 1.5e6, 1.5e6),
        ("pi-1 to pi-2", "halo 1", 3e6, 1e6),
        ("pi-2", "block 1", 4e6, 1e6),
        ("pi-2 to host", "gather 1", 5e6, 1e6),
        ("r", "m", 0.5e6, 9.5e6),
        ("r", "queue", 0.0, 0.5e6),
    ]


def test_transfers_that_overlap_get_lanes_of_their_own():
    tasks = [
        TaskTimes(0, 0, "a", 12.0, 12.0, 13.0, sent_s=11.0, sent_bytes=8),
        TaskTimes(1, 0, "a", 13.0, 13.0, 14.0, sent_s=11.5, sent_bytes=8),
    ]
    links = [row for row in rows(chrome_trace(lived(tasks))) if row[0].startswith("host")]
    assert [row[0] for row in links] == ["host to pi-1", "host to pi-1 (2)"]


def test_transfer_that_no_peer_sent_first_hand_is_no_halo():
    tasks = [TaskTimes(0, 0, "a", 11, 11, 12), TaskTimes(1, 1, "b", 13, 13, 14)]
    assert not any("halo" in row[1] for row in rows(chrome_trace(lived(tasks, [Passed(0, 1, 6)]))))
    there = [TaskTimes(0, 0, "a", 11, 11, 12), TaskTimes(1, 0, "b", 13, 13, 14, relayed=True)]
    assert not any("halo" in row[1] for row in rows(chrome_trace(lived(there, [Passed(0, 1, 6)]))))
    here = [TaskTimes(0, 0, "a", 11, 11, 12), TaskTimes(1, 0, "a", 13, 13, 14)]
    assert not any("halo" in row[1] for row in rows(chrome_trace(lived(here, [Passed(0, 1, 6)]))))


def test_clocks_that_err_do_not_turn_time_around():
    tasks = [TaskTimes(0, 0, "a", 11, 11, 12.5), TaskTimes(1, 0, "b", 12.4, 12.4, 13)]
    halo = next(r for r in rows(chrome_trace(lived(tasks, [Passed(0, 1, 6)]))) if "halo" in r[1])
    assert halo[3] == 0
