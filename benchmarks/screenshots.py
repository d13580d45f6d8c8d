"""The README's pictures, from a running coordinator: `python -m benchmarks.screenshots --url URL`.

`docs/images/page.png` is the page after a request, in headless Chromium; `docs/images/answer.png`
the annotated picture. `imbrex demo --keep` prints a URL.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from PIL import Image

from models.digits.examples import examples
from tests.serving.browser import browser

IMAGES = Path(__file__).parent.parent / "docs" / "images"
WAIT_S = 60.0
# The second request finds every program on its device.
REQUESTS = 3


def main() -> None:
    """Writes both pictures."""
    parser = argparse.ArgumentParser(description="The README's pictures.")
    parser.add_argument("--url", default="http://127.0.0.1:8460", help="the coordinator")
    url = parser.parse_args().url
    for take, path in ((annotated, IMAGES / "answer.png"), (page, IMAGES / "page.png")):
        take(url, path)
        _smaller(path)


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
    """The page with a picture that was tried."""
    with browser(1240, 1020) as driver:
        driver.get(url)

        def found() -> bool:
            return bool(
                driver.execute_script(
                    "return document.querySelector('#overlay .found') && "
                    "document.querySelector('#overlay .tile') && "
                    "!document.getElementById('stage').classList.contains('busy')"
                )
            )

        _wait(lambda: bool(driver.execute_script("return document.querySelector('#devices li')")))
        driver.execute_script("document.getElementById('sample').click()")
        for _ in range(REQUESTS):
            _wait(found)
            driver.execute_script("document.getElementById('again').click()")
        _wait(found)
        driver.save_screenshot(str(path))


def _wait(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise SystemExit("the page did not get that far; see the coordinator's log")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
