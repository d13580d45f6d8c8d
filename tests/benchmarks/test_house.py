"""The counts of `benchmarks.house`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.house import counts


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three packages, two of which import each other, and a generated file."""
    files = {
        "models/a.py": "from worker.b import b\n",
        "worker/b.py": "import protos.c\n\n\ndef f():\n    from models import a\n",
        "protos/c.py": "",
        "protos/c_pb2.py": "import models.a\n",
        "coordinator/__init__.py": "",
        "coordinator/loose.py": "from models.a import b\n",
        "imbrex/__init__.py": "import coordinator.loose\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(counts, "ROOT", tmp_path)
    return tmp_path


def test_lines_and_loose_files_are_counted(house: Path) -> None:
    assert counts.product_lines() == 1 + 5 + 1 + 1
    assert counts.loose_files() == 1


def test_rooms_that_import_each_other_are_found(house: Path) -> None:
    assert counts.package_cycles() == [["models/a", "worker"]]
    (house / "worker/b.py").write_text("import protos.c\n")
    assert counts.package_cycles() == []


@pytest.mark.slow
def test_what_a_request_passes_is_counted_on_real_processes() -> None:
    command = [sys.executable, "-m", "benchmarks.house", "--json", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    told = json.loads(done.stdout)
    assert told["functions_per_request"] == len(told["passed"]) > 50
    files = {each.split(":")[0] for each in told["passed"]}
    assert told["files_per_request"] == len(files)
    assert {"worker/tasks/state.py", "coordinator/tasks/scheduler.py"} <= files
