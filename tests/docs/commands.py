"""What the documentation shows, block by block.

A block of commands that needs more than this machine has says so in the line above it, as
`<!-- needs: a camera -->`; its commands are parsed and not run. A block without a language directly
after one of commands is their output, which is compared after `likened`.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"))
    if "adr" not in path.parts
)
_BLOCK = re.compile(
    r"(?:<!-- needs: ([^>]+?) -->\n+)?^```sh\n(.*?)^```(?:\n\n```\n(.*?)^```)?", re.M | re.S
)
_WRITTEN = re.compile(r"^```([a-z]+)\n(.*?)^```", re.M | re.S)
_MEASURED = re.compile(r"\d+(?:\.\d+)?(?: (?:ms|s)\b)?")
_BAR = re.compile(r"[\u2588-\u258f]+")
# Begin a command without being one.
_PREFIXES = re.compile(r"(sudo|runuser -u \S+ --|[A-Z_]+=\S+) ")


@dataclass(frozen=True)
class Block:
    """One fenced block of commands: where it is, what it needs, its text, and the shown output."""

    page: str
    number: int
    needs: str
    text: str
    output: str = ""

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"

    def commands(self) -> list[list[str]]:
        """The words of each command, without what begins it."""
        joined = self.text.replace("\\\n", " ")
        found = []
        for line in joined.splitlines():
            for command in line.split(" && "):
                text = command.strip()
                while (prefix := _PREFIXES.match(text)) is not None:
                    text = text[prefix.end() :]
                words = shlex.split(text, comments=True)
                if ">" in words:  # where the output goes is the shell's
                    words = words[: words.index(">")]
                if words:
                    found.append(words)
        return found


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        for number, match in enumerate(_BLOCK.finditer(page.read_text()), start=1):
            name = page.relative_to(ROOT).as_posix()
            found.append(Block(name, number, match[1] or "", match[2], match[3] or ""))
    return found


@dataclass(frozen=True)
class Written:
    """A fenced block that is no command: settings, data, or a program."""

    page: str
    number: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}-{self.number}-{self.language}"


def written() -> list[Written]:
    return [
        Written(page.relative_to(ROOT).as_posix(), number, match[1], match[2])
        for page in PAGES
        for number, match in enumerate(_WRITTEN.finditer(page.read_text()), start=1)
        if match[1] != "sh"
    ]


def likened(output: str) -> list[str]:
    """The lines of an output without what differs between machines: numbers, with their unit if
    that is of time, are `#`, bars and further spaces are left out.
    """
    lines = (_MEASURED.sub("#", _BAR.sub("", line)) for line in output.splitlines())
    return [" ".join(line.split()) for line in lines if line.strip()]
