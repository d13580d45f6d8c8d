"""Commands that texts of imbrex name exist, with the options that they are given."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from imbrex.cli.app import app

COMMANDS: Any = typer.main.get_command(app)
ROOT = Path(__file__).parents[2]
PARTS = ("coordinator", "worker", "models", "imbrex", "protos")
# A word that stands for what a program writes there, or for any command.
GAP, ANY = "X", (".", "...", "X")
_LINE = re.compile(r"\bimbrex ([a-z][^`\n;,)(]*)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def texts(code: str) -> Iterator[str]:
    """Every string of a module, with a word for each gap."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values
            )


def problems(text: str) -> list[str]:
    """What of the commands in a text does not exist. One whose first word is no command is prose
    ("imbrex has failed"), unless it is in backticks.
    """
    wrong = []
    for match in _LINE.finditer(text):
        line = match[1]
        words, command = line.split(), COMMANDS
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        is_quoted = text[: match.start()].endswith("`")
        if command is COMMANDS:
            wrong += [f"no command: {line}"] if is_quoted else []
            continue
        if getattr(command, "commands", {}) and words and is_quoted and words[0] not in ANY:
            wrong.append(f"no such command: {line}")
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        wrong += [
            f"no option {each}: {line}"
            for each in _OPTION.findall(line)
            if each not in known | {"--help"}
        ]
    return wrong


def test_every_command_that_a_text_names_exists() -> None:
    files = [file for part in PARTS for file in (ROOT / part).rglob("*.py")]
    seen = [text for file in files for text in texts(file.read_text())]
    assert sum(bool(_LINE.search(text)) for text in seen) > 200
    assert [each for text in seen for each in problems(text)] == []


def test_command_that_does_not_exist_is_noticed() -> None:
    assert problems("`imbrex models add FILE --task tensor`") == []
    assert problems("imbrex cannot do that --really") == []
    assert problems("`imbrex modles list`")
    assert problems("`imbrex models ad FILE`")
    assert problems("imbrex models add FILE --tasks tensor")
    assert any(map(problems, texts('f"`imbrex status {name} --savve x`"')))
