"""The commands that the documentation shows, block by block.

A block that needs more than this machine has says so in the line above it, as
`<!-- needs: a camera -->`; its commands are parsed and not run.
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
_BLOCK = re.compile(r"(?:<!-- needs: ([^>]+?) -->\n+)?^```sh\n(.*?)^```", re.M | re.S)
# Begin a command without being one.
_PREFIXES = re.compile(r"(sudo|runuser -u \S+ --|[A-Z_]+=\S+) ")


@dataclass(frozen=True)
class Block:
    """One fenced block: where it is, what it needs, and its text."""

    page: str
    number: int
    needs: str
    text: str

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
            found.append(Block(name, number, match[1] or "", match[2]))
    return found
