"""Somebody who types on a machine, over SSH."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.deploy.machines import inside, wait_for

INTERRUPT = "\x03"
# What is typed has no digit there.
_SAY_WHEN_ENDED = r"""PROMPT_COMMAND='printf "\n[ended %s]\n" $?'"""
_ENDED = r"\[ended \d+\]"
_ASKED = r"\[Y/n\]"


class Terminal:
    """A login shell, with what was seen in it since the last line was typed.

    `config` is of ssh, and knows the machine by its name.
    """

    def __init__(self, config: Path, user_at_host: str) -> None:
        self._seen = ""
        self._since = 0
        self._ssh = subprocess.Popen(
            inside("ssh", "-F", config, "-tt", user_at_host),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TERM": "dumb"},
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        self.run(_SAY_WHEN_ENDED)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ssh.terminate()
        self._ssh.wait(30)
        self._reader.join(30)
        for pipe in (self._ssh.stdin, self._ssh.stdout):
            if pipe is not None:
                pipe.close()

    def type(self, line: str) -> None:
        """Types a line, and does not wait."""
        self._since = len(self._seen)
        assert self._ssh.stdin is not None
        self._ssh.stdin.write(line.encode() if line == INTERRUPT else f"{line}\n".encode())
        self._ssh.stdin.flush()

    def see(self, pattern: str, within_s: float = 120) -> str:
        """What of it was seen first.

        Raises:
            AssertionError: nothing.
        """
        try:
            wait_for(lambda: re.search(pattern, self._seen[self._since :]), pattern, within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; this was seen:\n{self._seen[self._since :]}") from None
        return re.findall(pattern, self._seen[self._since :])[0]

    def run(self, line: str, within_s: float = 900) -> str:
        """What a command prints, the typed line included; a question is answered with yes.

        Raises:
            AssertionError: it failed.
        """
        self.type(line)
        if self.see(f"{_ASKED}|{_ENDED}", within_s) == "[Y/n]":
            began = self._since
            self.type("y")
            self.see(_ENDED, within_s)
            self._since = began
        said = self._seen[self._since :]
        assert self.see(_ENDED) == "[ended 0]", said
        return said

    def _read(self) -> None:
        assert self._ssh.stdout is not None
        while chunk := os.read(self._ssh.stdout.fileno(), 1 << 16):
            self._seen += chunk.decode(errors="replace").replace("\r", "")
