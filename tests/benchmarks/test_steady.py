"""How long the lab's rounds go on."""

from benchmarks.lab.measure import Steady


def test_rounds_are_counted_from_the_last_one_in_which_anything_was_clearly_faster() -> None:
    steady, found = Steady(), []
    for seconds in [(4.0, 9.0), (4.1, 9.2), (3.97, 8.95), (4.0, 8.8), (5.0, 8.9), (3.9, 9.0)]:
        steady.add(seconds)
        found.append(steady.rounds)
    assert found == [1, 2, 3, 1, 2, 1]


def test_slow_improvement_is_not_taken_for_steadiness_for_ever() -> None:
    """Each round is 0.7 % faster than the one before it."""
    steady = Steady()
    for number in range(10):
        steady.add([0.993**number])
    assert steady.rounds < 10
