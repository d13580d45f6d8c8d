"""The product without one of its optional packages: the rest of it still works."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from benchmarks.house.counts import OPTIONAL, ROOMS
from coordinator.devices.children import Child, start, stop, wait_until
from models.digits.examples import examples
from tests.test_house import REGISTRIES

ROOT = Path(__file__).parents[2]
START_S = 60.0
# An editable installation would find what is missing in the copy.
ALONE = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in str(each)]
"""
# It takes the place of `python -m imbrex`.
RUN = ALONE + "sys.argv[1:4] = []\nfrom imbrex.cli.app import main\nmain()\n"
IMPORT_ALL = (
    ALONE
    + """
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
)


def copy_without(room: str, target: Path) -> None:
    for each in ROOMS:
        shutil.copytree(ROOT / each, target / each, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(target / room)
    (target / "run.py").write_text(RUN)
    (target / "import_all.py").write_text(IMPORT_ALL)


def child(product: Path, folder: Path, *arguments: str) -> Child:
    flags = ["--no-mdns", "--host", "127.0.0.1", "--port", "0", "--state-dir", str(folder)]
    within = [sys.executable, str(product / "run.py")]
    return start(folder.name, [*arguments, *flags], folder, folder / "ready.json", within)


def started(process: Child, key: str) -> str:
    wait_until(lambda: bool(process.ready()), f"{process.name} did not start", [process], START_S)
    return str((process.ready() or {})[key])


@pytest.mark.slow
@pytest.mark.parametrize("room", sorted(OPTIONAL))
def test_the_rest_is_imported_and_answers(tmp_path: Path, room: str) -> None:
    copy_without(room, tmp_path)
    # A registry that only this room needs may import it at once.
    command = [sys.executable, str(tmp_path / "import_all.py")]
    needs = REGISTRIES[room] if room == "models/quantise" else ""
    subprocess.run([*command, needs, *ROOMS], check=True, timeout=300)
    processes = [child(tmp_path, tmp_path / "w", "worker", "--name", "w")]
    try:
        address = started(processes[0], "address")
        options = ["--no-host-computes", "--no-profile", "--model", "digits", "--worker", address]
        processes.append(child(tmp_path, tmp_path / "c", "coordinator", *options))
        url = started(processes[1], "url") + "/v1/models/digits/infer"
        picture = examples()[0].path.read_bytes()
        headers = {"Content-Type": "image/png"}
        answer = httpx.post(url, content=picture, headers=headers, timeout=START_S)
        assert answer.status_code == 200, answer.text
        assert answer.json()["predictions"]
    finally:
        stop(processes)
