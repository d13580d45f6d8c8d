"""Sixty-four real workers: what people look at stays readable."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations
from typing import Any

import pytest

from benchmarks.many import Home
from tests.cli.run_cli import imbrex
from tests.serving.browser import browser, errors, needs_browser, text
from tests.serving.processes import wait
from tests.serving.test_page import DROP, TILES, choose, count

COUNT = 64
SPILT = """
const within = (each) => each.scrollWidth <= each.clientWidth + 1;
return [...document.querySelectorAll("#devices li")].filter((each) => !within(each)).length;
"""


def cover(one: Any, other: Any) -> bool:
    """Whether two boxes on the screen have more than an edge in common."""
    return all(
        min(one[stop], other[stop]) - max(one[start], other[start]) > 1
        for start, stop in (("top", "bottom"), ("left", "right"))
    )


def on_a_terminal(columns: int, *arguments: str) -> list[str]:
    """The lines that a terminal of this width shows, without their colours."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (COUNT, columns))
    with open(ours, "rb") as screen:
        command = [sys.executable, "-m", "imbrex", *arguments]
        with subprocess.Popen(command, stdout=theirs) as running:
            os.close(theirs)
            chunks = []
            with suppress(OSError):  # how a terminal ends
                while chunk := screen.read1():
                    chunks.append(chunk)
        assert running.returncode == 0
    return re.sub(r"\x1b\[[\d;]*m", "", b"".join(chunks).decode()).splitlines()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    made = Home(tmp_path_factory.mktemp("many"), COUNT)
    try:
        yield made
    finally:
        made.client.close()
        made.stop()


@pytest.mark.slow
def test_the_status_has_a_row_for_each(home: Home) -> None:
    rows = imbrex("status", "--url", home.url, "--json").json()["devices"]
    assert len(rows) == COUNT
    shown = on_a_terminal(100, "status", "--url", home.url)
    names = [line.split()[0] for line in shown if line.startswith("worker-")]
    assert sorted(names) == sorted(f"worker-{number}" for number in range(1, COUNT + 1))
    assert max(map(len, shown)) <= 100


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_has_a_place_for_each(home: Home, width: int) -> None:
    with browser(width, 900) as driver:
        driver.get(home.url)
        wait(lambda: f"{COUNT} devices ready" in text(driver, "status"))
        wait(lambda: count(driver, "#devices li") == COUNT)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        assert driver.execute_script(SPILT) == 0
        choose(driver, "strategy", "fused")
        wait(lambda: text(driver, "plan").startswith("fused"))
        driver.execute_async_script(DROP)
        wait(lambda: count(driver, "#overlay .found") > 4)
        told = driver.execute_script(TILES)
        assert len(told["tiles"]) == count(driver, "#overlay .tile")
        # Where tiles are thinner than a line of text, names that would cover others are left out.
        names = [each for each in told["tags"] if each["text"].startswith("worker-")]
        assert names
        assert not any(cover(one, other) for one, other in combinations(names, 2))
        assert errors(driver) == []
