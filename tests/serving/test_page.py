"""The page in a real browser, over a real cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest
from fastapi import FastAPI
from PIL import Image

from benchmarks import screenshots
from coordinator.answers import Answer
from coordinator.devices import children
from coordinator.requests.journal import RequestRecord
from coordinator.serving.page import hub as recents
from coordinator.serving.page.http import FILES, SECURITY
from coordinator.serving.page.hub import Recent
from coordinator.tasks.plan import TrafficBytes
from coordinator.tasks.timeline import Timing
from imbrex import Client
from models.digits.examples import examples
from protos.errors import Unavailable
from tests import forked
from tests.serving.browser import browser, errors, needs_browser, text
from tests.serving.in_place import InPlace, picture
from tests.serving.processes import Service, serving, wait

DROP = """
const done = arguments[arguments.length - 1];
fetch("/page/sample").then((response) => response.blob()).then((blob) => {
  const data = new DataTransfer();
  data.items.add(new File([blob], "sheet.png", { type: "image/png" }));
  const target = document.getElementById("drop");
  for (const kind of ["dragenter", "dragover", "drop"]) {
    const how = { bubbles: true, cancelable: true, dataTransfer: data };
    target.dispatchEvent(new DragEvent(kind, how));
  }
  done();
});
"""


# Where tiles and what is written on them lie on the screen.
TILES = """
const box = (each) => {
  const { top, bottom, left, right, height } = each.getBoundingClientRect();
  return { top, bottom, left, right, height, text: each.textContent };
};
const all = (selector) => [...document.querySelectorAll(selector)].map(box);
return { ...box(document.getElementById("picture")), tags: all("#overlay text"),
         tiles: all("#overlay .tile") };
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("page")
    with serving(folder, ["--model", "digits", "--strategy", "lw"], workers=2) as running:
        yield running


def count(driver, selector: str) -> int:
    return driver.execute_script("return document.querySelectorAll(arguments[0]).length", selector)


def choose(driver, identity: str, value: str) -> None:
    driver.execute_script(
        "const it = document.getElementById(arguments[0]); it.value = arguments[1];"
        "it.dispatchEvent(new Event('change'))",
        identity,
        value,
    )


@needs_browser
def test_a_picture_is_dropped_and_boxes_appear(cluster: Service) -> None:
    with browser() as driver:
        driver.get(cluster.url)
        wait(lambda: "2 devices ready" in text(driver, "status"))
        wait(lambda: count(driver, "#devices li") == 2)
        wait(lambda: "predicted" in text(driver, "plan"))
        driver.execute_async_script(DROP)
        wait(lambda: count(driver, "#overlay .found") > 4)
        assert count(driver, "#overlay .tile") == 2
        assert count(driver, "#overlay .halo") == 2
        assert count(driver, "#found tr") == count(driver, "#overlay .found")
        wait(lambda: count(driver, "#timeline rect") > 2)
        wait(lambda: text(driver, "answers") == "1")
        driver.refresh()
        wait(lambda: text(driver, "day-answers") == "1")
        assert count(driver, "#day-chart rect.answered") == 1
        driver.execute_async_script(DROP)
        wait(lambda: count(driver, "#overlay .found") > 4)
        wait(lambda: re.fullmatch(r"\d+\.\d/s", text(driver, "capacity")))
        assert re.fullmatch(r"\d+\.\d\u00d7|slower", text(driver, "gain"))
        assert re.search("measured|predicted", text(driver, "gain-note"))
        driver.execute_script("document.getElementById('show-tiles').click()")
        assert count(driver, "#overlay .tile") == 0
        assert errors(driver) == []


@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_every_tile_of_the_picture_is_named_and_readable(cluster: Service, width: int) -> None:
    """The sheet is broader than the model's square: what lies beyond it has no tile."""
    with browser(width, 900) as driver:
        driver.get(cluster.url)
        wait(lambda: "predicted" in text(driver, "plan"))
        driver.execute_async_script(DROP)
        wait(lambda: count(driver, "#overlay .found") > 4)
        told = driver.execute_script(TILES)
        assert {"worker-1", "worker-2"} <= {each["text"] for each in told["tags"]}
        for each in told["tags"] + told["tiles"]:
            assert each["height"] > 8
            assert each["top"] >= told["top"] - 1
            assert each["bottom"] <= told["bottom"] + 1


@needs_browser
def test_the_reference_shows_every_route(cluster: Service) -> None:
    with browser() as driver:
        driver.get(f"{cluster.url}/docs")
        wait(lambda: count(driver, "#routes section") > 10)
        shown = text(driver, "routes")
        for route in ("POST /v1/models/{model}/infer", "DELETE /v1/plans/{model}"):
            assert route in shown
        assert "429" in shown
        assert f"curl {cluster.url}/v1/devices" in shown
        assert f"--data-binary @photo.jpg {cluster.url}/v1/models/digits/infer" in shown
        assert f"curl -F image=@photo.jpg {cluster.url}/v1/vision/detection" in shown
        assert f"curl -X DELETE {cluster.url}/v1/plans/digits" in shown
        assert f"{cluster.url}/v2/models/digits/infer" in shown
        assert "`" not in shown
        assert errors(driver) == []


@needs_browser
def test_choice_of_a_strategy_changes_the_prediction(cluster: Service) -> None:
    with browser() as driver:
        driver.get(cluster.url)
        wait(lambda: text(driver, "plan").startswith("lw"))
        before = text(driver, "together")
        choose(driver, "strategy", "single")
        wait(lambda: text(driver, "plan").startswith("single"))
        assert text(driver, "together") != before
        choose(driver, "strategy", "ofl")
        wait(lambda: text(driver, "plan").startswith("ofl"))
        assert errors(driver) == []


def recent(url: str) -> dict[str, list[dict[str, float]]]:
    """What a page is told of earlier answers when it opens."""
    with httpx.stream("GET", f"{url}/page/events", timeout=30, trust_env=False) as events:
        lines = events.iter_lines()
        while next(lines) != "event: recent":
            pass
        return json.loads(next(lines).removeprefix("data: "))


def shows(driver, name: str, value: float, unit: str) -> bool:
    """Whether the page shows a number, which may be rounded either way if it is halfway."""
    digits = 0 if unit == " ms" and value >= 100 else 1
    number = text(driver, name).removesuffix(unit)
    with suppress(ValueError):  # it is not there yet
        return abs(float(number) - value) < 0.51 * 10**-digits
    return False


@needs_browser
def test_a_page_that_opens_shows_what_was_measured_before(tmp_path) -> None:
    flags = ["--model", "digits", "--strategy", "lw", "--replan", "0"]
    with (
        serving(tmp_path, flags, workers=2) as running,
        browser(width=390) as driver,
        Client(running.url) as client,
    ):
        driver.get(running.url)
        wait(lambda: "predicted" in text(driver, "gain-note"))
        assert text(driver, "together-note") == "predicted; no request by this plan yet"
        body = examples()[0].path.read_bytes()
        for _ in range(8):
            client.infer("digits", body)
        wait(lambda: text(driver, "together-note").endswith("8 requests"))

        driver.get(running.url)
        wait(lambda: text(driver, "together-note") == "measured, median of 8 requests")
        assert text(driver, "alone-note") == "best device, predicted"
        wait(lambda: "is predicted to be" in text(driver, "gain-note"))
        taken = sorted(each["taken_ms"] for each in recent(running.url)["digits"])
        assert len(taken) == 8
        wait(lambda: shows(driver, "together", taken[4], " ms"))

        alone = client.baseline("digits")
        wait(lambda: text(driver, "alone-note") == f"{alone.device}, measured")
        driver.get(running.url)
        wait(lambda: "measured" in text(driver, "gain-note"))
        together, before_ms = taken[4], alone.latency_s * 1000
        wait(lambda: shows(driver, "alone", before_ms, " ms"))
        gain = before_ms / together
        told = text(driver, "gain")
        assert told == "slower" if gain < 1 else shows(driver, "gain", gain, "\u00d7")
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
        assert errors(driver) == []


@needs_browser
@pytest.mark.parametrize(
    ("width", "dark"),
    [(360, False), pytest.param(768, True, marks=pytest.mark.slow), (1280, True)],
)
def test_page_fits_every_screen(cluster: Service, width: int, dark: bool) -> None:
    with browser(width, 800, dark=dark) as driver:
        driver.get(cluster.url)
        wait(lambda: count(driver, "#devices li") == 2)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        theme = driver.execute_script("return document.documentElement.dataset.theme")
        assert theme == ("dark" if dark else "light")
        driver.execute_script("document.getElementById('theme').click()")
        pressed = driver.execute_script("return document.getElementById('theme').ariaPressed")
        assert pressed == str(not dark).lower()
        assert errors(driver) == []


NAMELESS = """
const named = (each) => each.ariaLabel || each.textContent.trim() || each.title
  || each.closest("label")?.textContent.trim();
return [...document.querySelectorAll("a, button, input, select, meter, [role=img]")]
  .filter((each) => !each.hidden && !named(each)).map((each) => each.outerHTML);
"""


@needs_browser
def test_page_can_be_used_without_a_mouse_or_eyes(cluster: Service) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def press(driver, key: str) -> None:
        ActionChains(driver).send_keys(key).perform()

    with browser() as driver:
        driver.get(cluster.url)
        wait(lambda: count(driver, "#devices li") == 2)
        assert driver.execute_script(NAMELESS) == []
        reached: list[str] = []
        for _ in range(14):
            press(driver, Keys.TAB)
            active = driver.switch_to.active_element
            reached.append(active.get_attribute("id") or active.text)
            if reached[-1] == "sample":
                press(driver, Keys.ENTER)
        assert {"theme", "model", "strategy", "sample", "file", "show-tiles"} <= set(reached)
        wait(lambda: "found by" in text(driver, "answer"))
        levels = driver.execute_script(
            "return [...document.querySelectorAll('h1, h2, h3')].map((each) => +each.tagName[1])"
        )
        assert levels[0] == 1
        assert set(levels[1:]) == {2}


@needs_browser
def test_a_worker_that_is_killed_is_seen(tmp_path) -> None:
    with serving(tmp_path, ["--model", "digits"], workers=2) as running, browser() as driver:
        driver.get(running.url)
        wait(lambda: count(driver, "#devices li[data-state=ready]") == 2)
        running.workers[0].process.kill()
        wait(lambda: count(driver, "#devices li[data-state=ready]") == 1)
        wait(lambda: "1 device ready" in text(driver, "status"))
        assert count(driver, "#devices li.away") == 1
        away = driver.find_element("css selector", "#devices li.away .facts").text
        assert re.search(r"; last seen \d+ s ago · \d+\.\d GFLOP/s", away)
        assert "worker-1 is" in text(driver, "devices-news")
        assert errors(driver) == []


@needs_browser
def test_page_without_devices_says_what_to_do(tmp_path) -> None:
    arguments = ["coordinator", "--no-mdns", "--no-host-computes", "--model", "digits"]
    arguments += ["--port", "0", "--state-dir", str(tmp_path)]
    alone = forked.start("coordinator", arguments, tmp_path, tmp_path / "ready.json")
    try:
        url = wait(alone.ready)["url"]
        with browser(dark=True) as driver:
            driver.get(url)
            wait(lambda: text(driver, "status") == "no worker is ready")
            assert "imbrex worker" in driver.find_element("id", "no-devices").text
            driver.execute_async_script(DROP)
            wait(lambda: "no worker is ready" in text(driver, "answer"))
            wait(lambda: "no worker is ready" in text(driver, "last-note"))
            assert count(driver, "#timeline *") == 0
    finally:
        children.stop([alone])


@needs_browser
@pytest.mark.slow
def test_the_pictures_of_the_readme_can_be_made(tmp_path) -> None:
    with serving(tmp_path / "slow", ["--model", "digits"], workers=2, pace=0.01) as running:
        screenshots.page(running.url, tmp_path / "page.png")
        screenshots.annotated(running.url, tmp_path / "answer.png")
    for name in ("page.png", "answer.png"):
        with Image.open(tmp_path / name) as made:
            assert len(made.convert("RGB").getcolors(1 << 24)) > 500


# ---------------------------------------------------------------- without a browser


async def test_page_loads_nothing_from_elsewhere(http: httpx.AsyncClient) -> None:
    page = await http.get("/")
    assert page.headers["Content-Type"].startswith("text/html")
    for name in FILES:
        response = page if name == "index.html" else await http.get(f"/page/{name}")
        assert response.status_code == 200
        assert all(response.headers[key] == value for key, value in SECURITY.items())
        body = response.text.replace("http://www.w3.org/2000/svg", "")
        assert "http" not in body.replace("https://ui.perfetto.dev", ""), name
        assert "innerHTML" not in body, name
    policy = page.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert not re.search(r"<script(?! type=\"module\" src=)|<style|\son\w+=|style=", page.text)
    linked = set(re.findall(r'(?:src|href)="/page/([\w.]+)"', page.text))
    linked |= {
        name
        for file in FILES.values()
        for name in re.findall(r'from "\./([\w.]+)"', file.read_text())
    }
    assert linked <= set(FILES)
    for name in ("nothing.js", "..%2Fhttp.py", "http.py"):
        assert (await http.get(f"/page/{name}")).status_code == 404


async def test_events_tell_state_and_requests(
    http: httpx.AsyncClient, coordinator: InPlace, app: FastAPI
) -> None:
    await http.post("/v1/models/tiny/infer", content=picture())
    hub = app.state.page
    told = {}
    async for event in hub.watch():
        name, data = re.fullmatch(r"event: (\w+)\ndata: (.*)\n\n", event).groups()
        told[name] = json.loads(data)
        if "recent" in told:
            hub.close()
    assert told["state"]["devices"][0]["name"] == "pi-1"
    assert told["state"]["models"][0]["alone"] is None
    assert told["recent"] == {"tiny": [{"plan_version": 3, "taken_ms": 9.0}]}
    assert told["request"]["taken_ms"] == 9.0
    assert told["state"]["requests"]["answered"][-1] >= 0
    assert (told["request"]["model"], told["request"]["outcome"]) == ("tiny", "ok")
    plan = (await http.post("/page/plans/tiny")).json()
    assert [tile["own"] for tile in plan["tiles"]] == [[0, 0, 16, 16]]
    assert plan["input"] == {"width": 16, "height": 16}
    assert (await http.post("/page/plans/nothing")).status_code == 404


async def test_baseline_of_one_device_is_told_to_every_page(
    http: httpx.AsyncClient, coordinator: InPlace, app: FastAPI
) -> None:
    await http.post("/v1/models/tiny/baseline")
    state = app.state.page.state()
    assert state["models"][0]["alone"] == {"device": "pi-1", "ms": 500.0}


def test_the_answers_that_are_kept_have_caps() -> None:
    timing = Timing(0.1, 0.0, 0.0, 0.0, 0.5)
    answer = Answer("id", {}, timing, 1, (), TrafficBytes())
    kept = Recent()
    for number in range(recents.MOST_MODELS + 2):
        for extra in range(recents.PER_MODEL + 3):
            kept.add(f"model-{number}", RequestRecord("id", "", 1.0, 1.5 + extra, answer, (), None))
    kept.add(
        "model-2", RequestRecord("id", "", 1.0, 9.0, None, (), Unavailable(cause="full", cure=""))
    )
    assert len(kept.told()) == recents.MOST_MODELS
    assert "model-1" not in kept.told()
    found = [each["taken_ms"] for each in kept.told()["model-2"]]
    assert found == [400.0 + 1000 * extra for extra in range(3, recents.PER_MODEL + 3)]


async def test_pages_that_watch_have_a_cap(http: httpx.AsyncClient, app: FastAPI) -> None:
    hub = app.state.page
    watching = [hub.watch() for _ in range(16)]
    for each in watching:
        await anext(each)
    refused = await http.get("/page/events")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    for each in watching:
        await each.aclose()
