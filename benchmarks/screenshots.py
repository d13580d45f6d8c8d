"""The README's pictures, from a running cluster: `python -m benchmarks.screenshots`.

`docs/images/page.png` is the page while a request is being computed, in headless Chromium;
`docs/images/answer.png` the annotated picture. The cluster is that of `imbrex demo --keep`; `--url`
takes another one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from coordinator.devices import children
from imbrex.demo.demo_cluster import ClusterForm, DemoCluster
from imbrex.demo.likeness import likeness
from imbrex.demo.measurement import wait_until_profiled
from models.digits.examples import examples
from protos.errors import Unavailable
from tests.serving.browser import browser

IMAGES = Path(__file__).parent.parent / "docs" / "images"
CACHE = Path.home() / ".cache/imbrex/screenshots"
WAIT_S = 120.0
# The second request finds every program on its device.
REQUESTS = 3
# A request may end while its picture is taken.
ATTEMPTS = 30

BUSY = "return document.getElementById('stage').classList.contains('busy')"
FOUND = (
    "return Boolean(document.querySelector('#overlay .found')"
    " && document.querySelector('#overlay .tile')"
    " && !document.getElementById('stage').classList.contains('busy'))"
)


def main() -> None:
    """Writes both pictures."""
    parser = argparse.ArgumentParser(description="The README's pictures.")
    parser.add_argument("--url", help="a coordinator that runs already")
    chosen = parser.parse_args().url
    with _cluster() if chosen is None else _given(chosen) as url:
        for take, path in ((annotated, IMAGES / "answer.png"), (page, IMAGES / "page.png")):
            take(url, path)
            _smaller(path)


@contextmanager
def _given(url: str) -> Iterator[str]:
    yield url


@contextmanager
def _cluster() -> Iterator[str]:
    with DemoCluster(ClusterForm("digits", 4, "auto", likeness("pi4", 4), True, CACHE)) as cluster:
        cluster.wait_until_listening()
        cluster.wait_until_found(print)
        wait_until_profiled(cluster, print)
        yield cluster.client.url


def _smaller(path: Path) -> None:
    """256 colours: a third of the bytes, for everybody who clones the repository."""
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)


def annotated(url: str, path: Path) -> None:
    """A sheet of digits with what was found."""
    headers = {"Accept": "image/png", "Content-Type": "image/png"}
    sheet = examples()[0].path.read_bytes()
    answer = httpx.post(
        f"{url}/v1/models/digits/infer", content=sheet, headers=headers, timeout=WAIT_S
    )
    answer.raise_for_status()
    path.write_bytes(answer.content)


def page(url: str, path: Path) -> None:
    """The page with a picture that is being computed, after others.

    Raises:
        Unavailable: it did not get that far.
    """
    with browser(1240, 1270) as driver:
        driver.get(url)
        _wait(driver, "return document.querySelector('#devices li') !== null")
        click(driver, "measure")
        _wait(driver, "return !document.getElementById('measure').disabled")
        click(driver, "sample")
        for _ in range(REQUESTS):
            _wait(driver, FOUND)
            click(driver, "again")
        _wait(driver, FOUND)
        shot = in_flight(driver, lambda: bytes(driver.get_screenshot_as_png()))
        path.write_bytes(shot)


def in_flight(driver: Any, take: Callable[[], bytes]) -> bytes:
    """What is taken while a request is computed from before to after.

    Raises:
        Unavailable: every request was faster.
    """
    for _ in range(ATTEMPTS):
        click(driver, "again")
        taken = take()
        if driver.execute_script(BUSY):
            return taken
        _wait(driver, FOUND)
    raise Unavailable(
        cause=f"each of {ATTEMPTS} requests ended before its picture was taken",
        cure="Take a slower cluster",
    )


def click(driver: Any, identity: str) -> None:
    """A button of the page."""
    driver.execute_script("document.getElementById(arguments[0]).click()", identity)


def _wait(driver: Any, condition: str) -> None:
    children.wait_until(
        lambda: bool(driver.execute_script(condition)),
        "the page did not get that far",
        [],
        WAIT_S,
    )


if __name__ == "__main__":
    main()
