"""The counts of `benchmarks.house`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.house import counts, names

# By how many the counts of a run may exceed those that are stored: which functions every one of its
# requests calls varies.
SPREADS = {
    "files_per_request": 0,
    "functions_per_request": 8,
    "files_per_halo_request": 2,
    "functions_per_halo_request": 8,
}


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
    monkeypatch.setattr(names, "ROOT", tmp_path)
    return tmp_path


def test_lines_and_loose_files_are_counted(house: Path) -> None:
    assert counts.product_lines() == 1 + 5 + 1 + 1
    assert counts.loose_files() == {"models": 1, "worker": 1, "coordinator": 1}


def test_rooms_that_import_each_other_are_found(house: Path) -> None:
    assert counts.package_cycles() == [["models/a", "worker/b"]]
    (house / "worker/b.py").write_text("import protos.c\n")
    assert counts.package_cycles() == []


def test_names_with_two_meanings_are_found(house: Path) -> None:
    (house / "models/a.py").write_text("Sizes = tuple[int, ...]\nMOST = 3\n\nclass Own: ...\n")
    (house / "protos/c.py").write_text("from x import Own\n\nclass Sizes: ...\nMOST = 3\n")
    assert names.defined_twice() == {"Sizes": ["models/a.py", "protos/c.py"]}
    (house / "protos/c.py").write_text("Own = NewType('Own', int)\n")
    assert names.defined_twice() == {"Own": ["models/a.py", "protos/c.py"]}


def test_files_of_one_name_in_two_places_are_found(house: Path) -> None:
    assert names.stems_twice() == {}
    for path in ("models/b.py", "protos/errors.py", "worker/errors.py", "imbrex/cli/a.py"):
        (house / path).parent.mkdir(exist_ok=True)
        (house / path).write_text("")
    assert names.stems_twice() == {"b": ["models/b.py", "worker/b.py"]}


def test_callables_are_found_behind_aliases_and_without_clocks_and_tables(house: Path) -> None:
    (house / "models/a.py").write_text(
        "Heard = Callable[[str], None]\n"
        "class A:\n"
        "    def __init__(self, clock: Callable[[], float], table: Mapping[str, Heard]): ...\n"
        "    async def start(self, heard: Heard | None): ...\n"
        "    def ask(self, heard: Heard): ...\n"
    )
    (house / "protos/c.py").write_text(
        "from models.a import Heard\nclass B:\n    field: Heard\n    b: Other\n"
    )
    assert names.callables_handed_over() == ["models/a.py: A(heard)", "protos/c.py: B(field)"]


def test_protocols_of_one_class_are_found(house: Path) -> None:
    (house / "models/a.py").write_text(
        "class P(Protocol):\n    def f(self): ...\n"
        "class Q(Protocol[T]):\n    def g(self): ...\n"
        "class A:\n    def f(self): ...\n    def g(self): ...\n"
        "class B:\n    def g(self): ...\n"
    )
    assert names.protocols_of_one() == ["P"]


def test_circles_of_files_and_importers_of_optional_rooms_are_found(house: Path) -> None:
    assert names.file_circles() == [["models/a.py", "worker/b.py"]]
    (house / "models/zoo").mkdir()
    (house / "models/zoo/vgg.py").write_text("")
    (house / "worker/b.py").write_text("from models.zoo.vgg import x\n")
    assert names.file_circles() == []
    (house / "protos/c.py").write_text('MEMBER = "models.zoo.vgg:x"\nOTHER = "models.zoology"\n')
    importers = ["protos/c.py imports models/zoo", "worker/b.py imports models/zoo"]
    assert names.importers_of_optional_rooms() == importers


def test_reads_of_private_members_in_tests_are_counted(house: Path) -> None:
    (house / "tests").mkdir()
    (house / "tests/test_a.py").write_text(
        "class Own:\n    def f(self):\n        self._mine = other._theirs\n"
        "        return a.__doc__ + own._mine\n"
    )
    assert names.private_reads() == {"tests/test_a.py": 1}


@pytest.mark.slow
def test_files_and_functions_of_a_request_are_counted_on_real_processes_and_get_no_more() -> None:
    command = [sys.executable, "-m", "benchmarks.house", "--json", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    house = json.loads(done.stdout)
    assert house["functions_per_request"] == len(house["passed"]) > 50
    files = {passed.split(":")[0] for passed in house["passed"]}
    assert house["files_per_request"] == len(files)
    assert {"worker/tasks/state.py", "coordinator/tasks/scheduler.py"} <= files
    stored = json.loads((counts.ROOT / "benchmarks/results/house.json").read_text())
    limits = {name: stored[name] + spread for name, spread in SPREADS.items()}
    more = {name: house[name] for name, limit in limits.items() if house[name] > limit}
    assert not more, f"a request passes more than {limits}"
