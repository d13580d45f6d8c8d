"""imbrex is on no package index: nothing tells anyone to install it from there by its name."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from imbrex.cli.app import EXTRAS
from protos.daemon.extras import line_for_extra, line_to_install
from tests.docs.commands import PAGES, ROOT

OPTIONAL = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# What users read: the pages, and the help and the errors in the sources.
READ = [
    *PAGES,
    ROOT / "CHANGELOG.md",
    *(
        path
        for folder in ("imbrex", "protos", "models", "worker", "coordinator", "deploy")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".md", ".toml", ".yml", ".yaml", ".j2", ".sh", ".service"}
    ),
]
_BY_NAME = re.compile(
    r"\b(?:(?:pip|pip3|pipx|tool) (?:install|run)|uvx|uv add)(?:\s+-\S+)*"
    r"\s+[\"']?imbrex(?![\w/*-]|\.\w)[^\n]{0,20}"
)
_EXTRA = re.compile(r"(?<!whl)\bimbrex\[[a-z]+[^\n]{0,20}")
_ADDED = re.compile(r"(?:pipx inject imbrex|/pip install)((?: '[^']+')+)")


def by_name(text: str) -> list[str]:
    """What would look for imbrex on an index."""
    return [*_BY_NAME.findall(text), *_EXTRA.findall(text)]


def test_imbrex_is_never_installed_by_its_name() -> None:
    assert len(READ) > 500
    assert {path: found for path in READ if (found := by_name(path.read_text()))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "pip install imbrex",
        "`pip install\n'imbrex[coordinator]'`",
        'pipx install --force "imbrex[mqtt]"',
        "uv tool install imbrex.",
        "pipx run imbrex demo",
    ],
)
def test_a_line_that_does_would_be_noticed(line: str) -> None:
    assert by_name(line)


@pytest.mark.parametrize(
    "line",
    [
        "pipx install ./imbrex-*.whl",
        'pip install "$(ls imbrex-*.whl)[coordinator]"',
        'pipx install --force "imbrex-VERSION-py3-none-any.whl[coordinator]"',
        "pipx inject imbrex 'av>=14'",
    ],
)
def test_lines_with_the_wheel_or_other_packages_are_right(line: str) -> None:
    assert not by_name(line)


def test_packages_that_pages_add_are_those_of_extras() -> None:
    added = {
        package
        for page in PAGES
        for packages in _ADDED.findall(page.read_text())
        for package in shlex.split(packages)
    }
    assert added == {
        *OPTIONAL["watch"],
        *OPTIONAL["mqtt"],
        *OPTIONAL["ncnn"],
        *OPTIONAL["openvino"],
    }


@pytest.mark.parametrize("extra", OPTIONAL)
def test_a_cure_names_the_packages_of_the_extra(extra: str) -> None:
    words = shlex.split(line_for_extra(extra))
    assert words == [sys.executable, "-m", "pip", "install", *OPTIONAL[extra]]


def test_where_pipx_installed_imbrex_it_adds_packages(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "imbrex"))
    (tmp_path / "imbrex").mkdir()
    (tmp_path / "imbrex" / "pipx_metadata.json").touch()
    assert line_for_extra("mqtt") == "pipx inject imbrex 'paho-mqtt>=2.1'"
    assert line_to_install("av") == "pipx inject imbrex av"


def test_every_module_that_only_an_extra_installs_has_its_cure() -> None:
    assert {*EXTRAS.values()} == {*OPTIONAL} - {"ncnn", "openvino"}  # which are engines' matter
    assert len(EXTRAS) == sum(len(OPTIONAL[extra]) for extra in {*EXTRAS.values()})
