"""A benchmark's standard output is its result and nothing else."""

import json
from pathlib import Path

import pytest
import structlog

from benchmarks.report import command_line, emit


@pytest.fixture(autouse=True)
def _logs_as_before():
    yield
    structlog.reset_defaults()


def test_log_lines_stay_away_from_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"
    chosen = command_line("A test.").parse_args(["--json", "-o", str(file)])
    structlog.get_logger().info("a worker joined")
    emit({"answer": 42}, chosen, "for people")
    captured = capsys.readouterr()
    assert "a worker joined" in captured.err
    printed = json.loads(captured.out)
    assert printed["answer"] == 42
    assert printed == json.loads(file.read_text())


def test_people_get_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"answer": 42}, command_line("A test.").parse_args([]), "for people")
    assert capsys.readouterr().out == "for people\n"
