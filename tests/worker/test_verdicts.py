"""What counts against an engine as a whole."""

from types import SimpleNamespace

from worker.engines.verdicts import Verdicts

RIGHT = SimpleNamespace(is_right=True, difference=0.0, engine_s=1.0, onnxruntime_s=2.0)


def test_only_programs_that_are_still_there_count_for_memory() -> None:
    verdicts = Verdicts(100, by_speed=True)
    for number in range(3):  # as plans follow each other
        assert verdicts.judge(f"{number}", RIGHT, 60)
        assert not verdicts.against_the_engine()
        verdicts.freed(60)
    assert verdicts.judge("here", RIGHT, 60)
    assert verdicts.judge("and here", RIGHT, 60)
    assert "of memory" in verdicts.against_the_engine()
