"""What the documentation shows, block by block.

A block of commands that needs more than this machine has says so in the line above it, as
`<!-- needs: a camera -->`; its commands are parsed and not run. A block without a language directly
after one of commands is their output. Any other block without a language says what it is in the
line above it, as `<!-- shows: a drawing -->`. Outputs are compared by `unlike`.
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
_FENCED = re.compile(r"(?:<!-- shows: ([^>]+?) -->\n+)?^```([a-z]*)\n(.*?)^```$", re.M | re.S)
# A block by indentation, which nothing here would find.
_INDENTED = re.compile(r"(?<=\n\n) {4,}\S.*$", re.M)
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
    """A fenced block that is not a command: settings, data, or a program."""

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


def unlike(shown: str, printed: str) -> str:
    """The first line that is shown and was not printed, or not in this order; else nothing. A line
    `...` stands for what is left out.
    """
    rest = iter(likened(printed))
    lines = (line for line in likened(shown) if line != "...")
    return next((line for line in lines if line not in rest), "")


@dataclass(frozen=True, slots=True)
class Shown:
    """A fenced block without a language that is not the output of the commands above it."""

    page: str
    line: int
    what: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def shown_in(page: str, text: str) -> list[Shown]:
    """Such blocks of a page."""
    found, before, commands = [], 0, False
    for match in _FENCED.finditer(text):
        is_output = commands and text[before : match.start()] == "\n\n" and not match[1]
        if not match[2] and not is_output:
            line = text.count("\n", 0, match.start(3))
            found.append(Shown(page, line, match[1] or "", match[3]))
        before, commands = match.end(), match[2] == "sh"
    return found


def shown() -> list[Shown]:
    """Such blocks of all pages."""
    pages = [(page.relative_to(ROOT).as_posix(), page.read_text()) for page in PAGES]
    return [each for name, text in pages for each in shown_in(name, text)]


def indented(text: str) -> list[str]:
    """First lines of the page's blocks by indentation; items of a list are indented less."""
    return _INDENTED.findall(_FENCED.sub("", text))
