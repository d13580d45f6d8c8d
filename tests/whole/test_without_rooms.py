"""The product without one of its optional packages: the rest of it still works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import httpx
import pytest

from benchmarks.house.counts import OPTIONAL, ROOMS, imports, product
from coordinator.devices.children import Child, start, stop, wait_until
from coordinator.planning.planners.candidates import CANDIDATES
from models.catalogue.catalogue import ENTRIES
from models.digits.examples import examples
from tests.conftest import LACKING
from tests.test_house import REGISTRIES

ROOT = Path(__file__).parents[2]
START_S = 60.0
# The room without which tonight's tests run; by default another one each day.
VARIABLE = "IMBREX_WITHOUT_ROOM"
CHECKS = ("tests/test_house.py", "tests/test_words.py")
# A registry that only this room needs may import it at once.
AT_ONCE = {"models/quantise": REGISTRIES["models/quantise"]}
# An editable installation would find what is missing in the copy. Python imports this at its start.
ALONE = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in str(each)]
"""
# It takes the place of `python -m imbrex`.
RUN = "import sys\nsys.argv[1:4] = []\nfrom imbrex.cli.app import main\nmain()\n"
IMPORT_ALL = """
import sys
from importlib import import_module
from pathlib import Path

root = Path(__file__).parent
for top in sys.argv[2:]:
    for file in sorted((root / top).rglob("*.py")):
        name = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        if file.stem != "__main__" and str(file.relative_to(root)) != sys.argv[1]:
            module = import_module(name)
            assert module.__file__ == str(file), module.__file__
print(len(sys.modules))
"""


def tonight() -> str:
    rooms = sorted(OPTIONAL)
    return os.environ.get(VARIABLE) or rooms[date.today().toordinal() % len(rooms)]


def git(where: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", where, *arguments], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def copy(tmp_path: Path, room: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tree without the room and without its tests, which Python finds before any other."""
    target = tmp_path / "copy"
    for name in git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    for environment in ROOT.glob(".venv*"):
        (target / environment.name).symlink_to(environment)
    for file in own_tests(room):
        (target / file.relative_to(ROOT)).unlink()
    shutil.rmtree(target / room)
    git(target, "init", "--quiet")
    git(target, "add", "--all")
    (target / "sitecustomize.py").write_text(ALONE)
    (target / "run.py").write_text(RUN)
    (target / "import_all.py").write_text(IMPORT_ALL)
    monkeypatch.setenv("PYTHONPATH", str(target))
    monkeypatch.setenv(LACKING, " ".join(offered_by(room)))
    return target


def offered_by(room: str) -> list[str]:
    """The networks and strategies for which tests ask by name."""
    package = f"{room}.".replace("/", ".")
    networks = [name for name, each in ENTRIES.items() if str(each.source).startswith(package)]
    planners = {name: each.planner for name, each in CANDIDATES.items()}
    return networks + [n for n, each in planners.items() if each.__module__.startswith(package)]


def own_tests(room: str) -> set[Path]:
    """Those in the directory with the room's name, and those that import it, directly or by other
    files of tests and benchmarks. Single tests of other files have the mark `needs_room`.
    """
    others = [file for top in ("tests", "benchmarks") for file in (ROOT / top).rglob("*.py")]
    within = {file for file in product() if ROOT / room in file.parents}
    if room in AT_ONCE:
        within.add(ROOT / AT_ONCE[room])
    imported = imports([*others, *within])
    reach, fresh = within | set((ROOT / "tests" / Path(room).name).glob("*.py")), True
    while fresh:
        fresh = {file for file in others if file not in reach and imported[file] & reach}
        reach |= fresh
    return {file for file in reach if ROOT / "tests" in file.parents}


def run_pytest(copy: Path, *arguments: str) -> str:
    """Those of a push, which are not those of `make check`."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *arguments]
    command += [f"--ignore={each}" for each in CHECKS]
    found = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    print(found.stdout[-10_000:])
    assert found.returncode == 0, found.stdout[-10_000:] + found.stderr[-10_000:]
    return found.stdout


@pytest.mark.slow
@pytest.mark.parametrize("room", sorted(OPTIONAL))
def test_the_other_tests_are_collected(copy: Path, room: str) -> None:
    run_pytest(copy, "--collect-only", "-p", "no:cacheprovider")


@pytest.mark.slow
@pytest.mark.parametrize("room", [tonight()])
def test_the_other_tests_pass(copy: Path, room: str) -> None:
    run_pytest(copy, "-n", "3", "--dist", "worksteal")


def child(product: Path, folder: Path, *arguments: str) -> Child:
    flags = ["--no-mdns", "--host", "127.0.0.1", "--port", "0", "--state-dir", str(folder)]
    within = [sys.executable, str(product / "run.py")]
    return start(folder.name, [*arguments, *flags], folder, folder / "ready.json", within)


def started(process: Child, key: str) -> str:
    wait_until(lambda: bool(process.ready()), f"{process.name} did not start", [process], START_S)
    return str((process.ready() or {})[key])


@pytest.mark.slow
@pytest.mark.parametrize("room", sorted(OPTIONAL))
def test_the_rest_is_imported_and_answers(copy: Path, tmp_path: Path, room: str) -> None:
    command = [sys.executable, str(copy / "import_all.py")]
    subprocess.run([*command, AT_ONCE.get(room, ""), *ROOMS], check=True, timeout=300)
    processes = [child(copy, tmp_path / "w", "worker", "--name", "w")]
    try:
        address = started(processes[0], "address")
        options = ["--no-host-computes", "--no-profile", "--model", "digits", "--worker", address]
        processes.append(child(copy, tmp_path / "c", "coordinator", *options))
        url = started(processes[1], "url") + "/v1/models/digits/infer"
        picture = examples()[0].path.read_bytes()
        headers = {"Content-Type": "image/png"}
        answer = httpx.post(url, content=picture, headers=headers, timeout=START_S)
        assert answer.status_code == 200, answer.text
        assert answer.json()["predictions"]
    finally:
        stop(processes)
