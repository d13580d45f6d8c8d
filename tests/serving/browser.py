"""Headless Chromium with what it says on its console."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from selenium import webdriver

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "there is no chromium with chromedriver: `make browser`"


def needs_browser(test: Callable[..., object]) -> Callable[..., object]:
    without = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)
    marked: Callable[..., object] = pytest.mark.needs_browser(without(test))
    return marked


@contextmanager
def browser(width: int = 1280, height: int = 1000, *, dark: bool = False) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    assert CHROMIUM
    options.binary_location = CHROMIUM
    flags = ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage")
    for flag in (*flags, "hide-scrollbars"):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--window-size={width},{height}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        yield driver
    finally:
        driver.quit()


def text(driver: Any, identity: str) -> str:
    """The text of the element with this id."""
    found = "return document.getElementById(arguments[0]).textContent"
    return str(driver.execute_script(found, identity))


def errors(driver: Any) -> list[str]:
    return [each["message"] for each in driver.get_log("browser") if each["level"] == "SEVERE"]
