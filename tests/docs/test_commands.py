"""Every block of the documentation. Commands are parsed always, and run by `make test-slow` where
they can be, with the output that is shown; commands that take seconds and show their output run
always. Other outputs are made again here. Settings, data and programs are parsed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from configparser import ConfigParser
from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from textwrap import dedent

import pytest
import structlog
import yaml
from PIL import Image
from typer.main import get_command

from benchmarks import report
from coordinator.doctor.frigate import in_time
from coordinator.serving.frigate.server import log_in_time
from imbrex.cli.app import app
from imbrex.cli.quantising import Figures
from models.digits.examples import examples
from protos.daemon.logs import log_to_stderr
from tests.docs.commands import (
    PAGES,
    ROOT,
    Block,
    Shown,
    Written,
    blocks,
    indented,
    likened,
    shown,
    shown_in,
    unlike,
    written,
)
from tests.doctor.patients import patient
from tests.doctor.test_checks import examined, told
from tests.serving.camera import save_camera
from tests.serving.processes import Service, serving

BLOCKS = blocks()


def environment(text: str) -> None:
    """A file of settings for a service."""
    for line in text.splitlines():
        assert re.fullmatch(r"(#.*|[A-Z_]+=.*)?", line), line


def unit(text: str) -> None:
    """A drop-in of systemd, whose keys may come more than once."""
    found = ConfigParser(strict=False, interpolation=None)
    found.read_string(text)
    assert set(found.sections()) <= {"Unit", "Service", "Install"}


PARSERS: Mapping[str, Callable[[str], object]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
    "python": lambda text: compile(text, "a page", "exec"),
    "ini": environment,
    "systemd": unit,
}
# What only a browser reads.
DRAWN = {"mermaid"}
# What a block without needs may consist of.
RUNNABLE = {"imbrex", "python", "curl", "make", "cd", "export"}
# Make's targets that take minutes or change the system: that they are there is enough.
LONG = {"test", "test-slow", "lab", "lab-full", "check", "setup", "docs", "bench", "dist", "proto"}
# imbrex's commands that need no coordinator, and take seconds in the blocks that show their output.
QUICK = {"simulate", "plan", "check"}


def doctors_report() -> str:
    """Of a Raspberry Pi whose supply is too weak, beside one that is well."""
    weak = patient("pi-2", power_flags=0x50005, celsius=61.0, round_trip_s=0.0009)
    return told(examined(patient("pi-1"), weak))


def frigates_timeout() -> str:
    """The line of the log, without time and level."""
    configured, lines = structlog.get_config(), StringIO()
    try:
        with redirect_stderr(lines):
            log_to_stderr()
            log_in_time(in_time(0.310, 1))
    finally:
        structlog.configure(**configured)
    return lines.getvalue().partition("] ")[2]


# Whatever a page shows that is not the output of the commands above it -> how to make it; None if
# it is none of ours.
SHOWN: Mapping[str, Callable[[], str] | None] = {
    "a drawing": None,
    "a folder": None,
    "imbrex doctor, a weak supply": doctors_report,
    "the log, Frigate's timeout": frigates_timeout,
    "the end of imbrex models quantise": lambda: Figures("m", 1, 1, 0.992, 1, 2.1, ()).told(1.9),
}


def test_documentation_has_blocks_on_its_main_pages() -> None:
    assert len(BLOCKS) > 20
    assert any(block.needs for block in BLOCKS)
    assert {"README.md", "docs/start.md", "docs/own-model.md"} <= {block.page for block in BLOCKS}


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_commands_of_the_documentation_exist(block: Block) -> None:
    for words in block.commands():
        program = Path(words[0]).name
        if program == "imbrex":
            parsed(words[1:])
        elif program == "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
            assert set(words[1:]) <= set(targets), words
        elif program == "python" and words[1] == "-m":
            spec = find_spec(words[2])
            assert spec is not None, words
            module = Path(str(spec.origin))
            if module.name == "__init__.py":
                module = module.with_name("__main__.py")
            text = module.read_text()
            if " command_line(" in text:  # the options that benchmarks share
                text += Path(report.__file__).read_text()
            for flag in (each for each in words[3:] if each.startswith("--")):
                assert f'"{flag}"' in text, (flag, words)
        else:
            assert block.needs or program in RUNNABLE, f"{words}: say what the block needs"


def parsed(words: list[str]) -> None:
    """Takes the words as imbrex would, without running anything: wrong ones raise."""
    command = get_command(app)
    while hasattr(command, "commands"):
        assert words, "no command"
        command = command.commands[words[0]]
        words = words[1:]
    command.make_context("imbrex", list(words))


def test_a_wrong_flag_would_be_noticed() -> None:
    block = Block("page", 1, "", "imbrex infer sheet.png --sav answer.png\n")
    with pytest.raises(Exception, match="sav"):
        test_commands_of_the_documentation_exist(block)
    with pytest.raises(AssertionError, match="needs"):
        test_commands_of_the_documentation_exist(Block("page", 1, "", "apt install imbrex\n"))


@pytest.mark.parametrize("block", written(), ids=str)
def test_settings_data_and_programs_can_be_read(block: Written) -> None:
    if block.language not in DRAWN:
        PARSERS[block.language](dedent(block.text))


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("json", "{'a': 1}"),
        ("toml", "a = b"),
        ("yaml", "a: [1"),
        ("python", "def plan(:"),
        ("ini", "WATCH: x"),
        ("systemd", "PrivateDevices=no"),
        ("systemd", "[Sevrice]"),
    ],
)
def test_a_block_that_cannot_be_read_would_be_noticed(language: str, text: str) -> None:
    with pytest.raises(Exception, match=r"."):
        test_settings_data_and_programs_can_be_read(Written("page", 1, language, text))


def test_outputs_are_alike_but_for_what_differs_between_machines() -> None:
    shown = " one alone  \u2588\u2588\u258a  144 ms\n\n2.2 times as fast\n"
    assert likened(shown) == likened("one alone \u2588 1.02 s\n3 times as fast")
    assert likened(shown) != likened("one alone \u2588 1.02 s\n3 times as slow")
    assert not unlike("one\n...\nthree 3", "zero\none\ntwo\nthree 4")
    assert unlike("two\none", "one\ntwo") == "one"
    assert {str(block) for block in BLOCKS if block.output} == {
        "README.md-1",
        "docs/hardware.md-1",
        "docs/own-model.md-2",
    }


@pytest.mark.parametrize("block", shown(), ids=str)
def test_output_shown_without_a_command_is_what_is_printed(block: Shown) -> None:
    assert block.what in SHOWN, f"{block}: say in the line above what it shows"
    made = SHOWN[block.what]
    if made is not None:
        printed = made()
        assert not unlike(block.text, printed), f"{block} shows what is not printed:\n{printed}"


def test_unexplained_output_would_be_noticed() -> None:
    page = "```sh\nmake\n```\n\n```\nmade\n```\n\n```\nelse\n```\n\n    make demo\n"
    (found,) = shown_in("page", page)
    assert found.text == "else\n"
    with pytest.raises(AssertionError, match="page:9: say"):
        test_output_shown_without_a_command_is_what_is_printed(found)
    wrong = Shown("page", 1, "the log, Frigate's timeout", "frigate's timeout  cure=none\n")
    with pytest.raises(AssertionError, match="page:1 shows"):
        test_output_shown_without_a_command_is_what_is_printed(wrong)
    assert indented(page) == ["    make demo"]


def test_no_block_is_hidden_by_indentation() -> None:
    assert {page.name: found for page in PAGES if (found := indented(page.read_text()))} == {}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory):
    with serving(tmp_path_factory.mktemp("documented"), ["--model", "digits"]) as running:
        yield running


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A clone's files to read, pictures and models to use, and room to write."""
    for each in ("models", "benchmarks", "Makefile", "pyproject.toml", ".venv"):
        (tmp_path / each).symlink_to(ROOT / each)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("photo.jpg", "one.jpg", "two.jpg"):
        Image.open(examples()[0].path).convert("RGB").save(tmp_path / name)
    save_camera(tmp_path)
    save_birds(tmp_path)
    return tmp_path


def save_birds(folder: Path) -> None:
    import onnx

    from models.onnx_file.builder import NetworkBuilder, square

    net = NetworkBuilder("birds", seed=2)
    x = net.input("image", (1, 3, 32, 32)).conv("conv", 4, square(3)).relu()
    onnx.save(
        net.model(x.global_average_pool("mean").flatten("flat").gemm("fc", 4)),
        folder / "birds.onnx",
    )


def runnable(block: Block) -> bool:
    return not block.needs and not any(
        Path(words[0]).name == "make" and set(words[1:]) & LONG for words in block.commands()
    )


def is_quick(block: Block) -> bool:
    return bool(block.output) and all(
        Path(words[0]).name == "imbrex" and words[1] in QUICK for words in block.commands()
    )


@pytest.mark.parametrize("block", [each for each in BLOCKS if is_quick(each)], ids=str)
def test_a_quick_command_prints_what_is_shown(block: Block, place: Path) -> None:
    prints_what_is_shown(block, block.text, place, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", [each for each in BLOCKS if runnable(each) and not is_quick(each)], ids=str
)
def test_every_command_runs(block: Block, service: Service, place: Path) -> None:
    script = re.sub(r"localhost:8460|127\.0\.0\.1:8460", service.host_port, block.text)
    script = script.replace(" --keep", "")  # tests/cli/test_demo.py leaves one up
    script = re.sub(r"\bmake ", "make -o .venv/ready ", script)  # which this very test runs in
    prints_what_is_shown(block, script, place, {"IMBREX_URL": service.url})


def prints_what_is_shown(
    block: Block, script: str, place: Path, variables: Mapping[str, str]
) -> None:
    """Runs the block's commands as `script`, and compares with its output."""
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=place,
        env={
            **os.environ,
            "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
    missing = unlike(block.output, done.stdout)
    assert not missing, f"{block} shows {missing!r}:\n{done.stdout}"


def test_an_output_that_is_not_printed_would_be_noticed(tmp_path: Path) -> None:
    block = Block("page", 1, "", "echo 2 tiles\n", "3 tiles\n")
    prints_what_is_shown(block, block.text, tmp_path, {})
    with pytest.raises(AssertionError, match="page-1 shows"):
        prints_what_is_shown(block, "echo 2 blocks", tmp_path, {})
