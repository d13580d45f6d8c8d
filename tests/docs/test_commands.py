"""Every block of the documentation. Commands are parsed always, and run by `make test-slow` where
they can be, with the output that is shown; settings, data and programs are parsed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest
import yaml
from PIL import Image
from typer.main import get_command

from imbrex.cli.app import app
from models.digits.examples import examples
from tests.docs.commands import ROOT, Block, Written, blocks, likened, written
from tests.serving.camera import save_camera
from tests.serving.processes import Service, serving

BLOCKS = blocks()


def environment(text: str) -> None:
    """A file of settings for a service."""
    for line in text.splitlines():
        assert re.fullmatch(r"(#.*|[A-Z_]+=.*)?", line), line


PARSERS: Mapping[str, Callable[[str], object]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
    "python": lambda text: compile(text, "a page", "exec"),
    "ini": environment,
}
# What only a browser reads.
DRAWN = {"mermaid"}
# What a block without needs may consist of.
RUNNABLE = {"imbrex", "python", "curl", "make", "cd", "export"}
# Make's targets that take minutes or change the system: that they are there is enough.
LONG = {"test", "test-slow", "lab", "lab-full", "check", "setup", "docs", "bench", "dist", "proto"}


def test_there_are_blocks() -> None:
    assert len(BLOCKS) > 20
    assert any(block.needs for block in BLOCKS)
    assert {"README.md", "docs/start.md", "docs/own-model.md"} <= {block.page for block in BLOCKS}


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_command_is_one(block: Block) -> None:
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
            for flag in (each for each in words[3:] if each.startswith("--")):
                assert f'"{flag}"' in module.read_text(), (flag, words)
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
        test_every_command_is_one(block)
    with pytest.raises(AssertionError, match="needs"):
        test_every_command_is_one(Block("page", 1, "", "apt install imbrex\n"))


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
    ],
)
def test_a_block_that_cannot_be_read_would_be_noticed(language: str, text: str) -> None:
    with pytest.raises(Exception, match=r"."):
        test_settings_data_and_programs_can_be_read(Written("page", 1, language, text))


def test_outputs_are_alike_but_for_what_differs_between_machines() -> None:
    shown = " one alone  \u2588\u2588\u258a  144 ms\n\n2.2 times as fast\n"
    assert likened(shown) == likened("one alone \u2588 1.02 s\n3 times as fast")
    assert likened(shown) != likened("one alone \u2588 1.02 s\n3 times as slow")
    shows = [str(block) for block in BLOCKS if block.output]
    assert shows == ["README.md-1"]


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

    from models.zoo.builder import Network, square

    net = Network("birds", seed=2)
    x = net.input("image", (1, 3, 32, 32)).conv("conv", 4, square(3)).relu()
    onnx.save(
        net.model(x.global_average_pool("mean").flatten("flat").gemm("fc", 4)),
        folder / "birds.onnx",
    )


def runnable(block: Block) -> bool:
    return not block.needs and not any(
        Path(words[0]).name == "make" and set(words[1:]) & LONG for words in block.commands()
    )


@pytest.mark.slow
@pytest.mark.parametrize("block", [each for each in BLOCKS if runnable(each)], ids=str)
def test_every_command_runs(block: Block, service: Service, place: Path) -> None:
    script = re.sub(r"localhost:8460|127\.0\.0\.1:8460", service.host_port, block.text)
    script = script.replace(" --keep", "")  # tests/cli/test_demo.py leaves one up
    script = re.sub(r"\bmake ", "make -o .venv/ready ", script)  # which this very test runs in
    variables = {
        **os.environ,
        "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "IMBREX_URL": service.url,
    }
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=place,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
    printed = likened(done.stdout)
    for line in likened(block.output):
        assert line in printed, f"{block.page} shows {line!r}:\n{done.stdout}"
