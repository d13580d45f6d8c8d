from coordinator.devices.pings import ClockEstimate, PingPace, RoundTrip

INTERVAL_S, LOST_S = 0.75, 2.0


def pace():
    return PingPace(100.0, INTERVAL_S, LOST_S)


def test_a_silent_worker_is_pinged_every_interval():
    silent = pace()
    assert silent.wait_s(100.0) == INTERVAL_S
    assert silent.wait_s(100.75) == 0
    silent.answered(101.0)
    assert silent.wait_s(101.0) == INTERVAL_S


def test_a_worker_that_talks_is_left_alone_but_for_its_clock():
    talking = pace()
    pinged = 0
    for step in range(1, 101):
        now = 100.0 + step * 0.1
        talking.heard_s = now
        if talking.wait_s(now) <= 0:
            pinged += 1
            talking.answered(now)
    assert pinged == 2


def test_patience_ends_when_two_pings_would_have_been_missed():
    silent = pace()
    assert silent.patience_s(100.75) == LOST_S - 0.75
    # A loop that slept through the deadline gives the worker the time of one ping.
    assert silent.patience_s(150.0) == INTERVAL_S


def test_the_shortest_round_trip_tells_the_offset():
    clock = ClockEstimate()
    assert clock.offset_s == 0.0
    for seconds, offset in ((0.3, 7.2), (0.001, 7.01), (0.2, 6.9)):
        clock.add(RoundTrip(0, 0, seconds, 0.0, offset))
    clock.add(RoundTrip(1 << 20, 0, 0.0001, 0.0, 99.0))
    assert clock.offset_s == 7.01
    for _ in range(16):
        clock.add(RoundTrip(0, 0, 0.5, 0.0, 8.0))
    assert clock.offset_s == 8.0
