"""What holds for every route: headers, orders never by GET, no path to the file system."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from http import HTTPStatus
from itertools import product
from urllib.parse import quote

import httpx
import pytest

from coordinator.service import Coordinator
from coordinator.serving.app import create_app
from coordinator.serving.common.middleware import SECURITY
from coordinator.settings import CoordinatorSettings
from models.digits.examples import examples
from protos.errors import NotFound
from tests.serving.in_place import InPlace, picture
from tests.serving.real import save_tiny
from tests.serving.routes import READING, every_route, filled

# What the coordinator does for who only looks. A route that calls anything else is no GET.
LOOKING = {
    "admission",
    "described",
    "device_statuses",
    "devices",
    "doctor",
    "examine",
    "get",
    "is_loaded",
    "journal",
    "library",
    "losses",
    "made",
    "measuring",
    "members",
    "names",
    "now",
    "plans",
    "pool",
    "profile_of",
    "readiness",
    "readiness_of",
    "running",
    "served",
    "settings",
    "settle",
    "statuses",
    "trace",
    "waiting",
    "weight_bytes",
}


class Watched:
    """A coordinator that notes what is asked of it; what it doesn't have, it doesn't find."""

    def __init__(self, inner: InPlace) -> None:
        self._inner = inner
        self.asked: set[str] = set()

    def __getattr__(self, name: str):
        self.asked.add(name)
        if name in (
            "served",
            "plans",
            "doctor",
            "measuring",
            "devices",
            "pool",
            "library",
            "admission",
        ):  # what is asked of them is noted too
            return self
        if hasattr(self._inner, name):
            return getattr(self._inner, name)

        def nothing(*_args: object, **_more: object):
            raise NotFound(cause=f"no {name} here", cure="Ask for something else")

        return nothing


async def asked_by(app, watched: Watched, path: str) -> set[str]:
    """What GET and HEAD of a path asked of the coordinator."""
    watched.asked.clear()
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        for method in ("GET", "HEAD"):
            answer = await http.request(method, path)
            assert answer.status_code != HTTPStatus.INTERNAL_SERVER_ERROR, path
    return set(watched.asked)


def looking_paths() -> list[str]:
    values = {"model": "tiny", "name": "tiny", "version": "1", "device": "pi-1"}
    return sorted(
        {
            filled(path, **values)
            for method, path in every_route()
            if method in READING and path != "/page/events"  # it never ends
        }
    )


async def test_get_changes_nothing() -> None:
    watched = Watched(InPlace())
    app = create_app(watched)  # type: ignore[arg-type]
    paths = looking_paths()
    assert len(paths) > 20
    for path in paths:
        assert await asked_by(app, watched, path) <= LOOKING, path


async def test_an_order_by_get_would_be_found() -> None:
    watched = Watched(InPlace())
    app = create_app(watched)  # type: ignore[arg-type]

    @app.get("/planted")
    def planted() -> None:
        watched.plans.release("tiny")

    assert not await asked_by(app, watched, "/planted") <= LOOKING


async def test_every_answer_is_safe_to_open() -> None:
    app = create_app(Watched(InPlace()))  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        paths = [*looking_paths(), "/openapi.json", "/none"]
        answers = [await http.get(path) for path in paths]
        answers.append(await http.post("/v1/models/tiny/infer", content=picture()))
    assert {200, 404} <= {each.status_code for each in answers}
    for answer in answers:
        headers = answer.headers
        assert all(name in headers for name in SECURITY), answer.url
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert "http" not in headers["Content-Security-Policy"], answer.url
        assert headers["Referrer-Policy"] == "no-referrer"


# ---------------------------------------------------------------- the file system

CANARY = "canary-7c1f"
PARAMETERS = ("model", "name", "version", "device", "request_id", "repository", "rest")
_opened: list[str] = []
_installed: list[bool] = []


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and CANARY in str(arguments[0]):
        _opened.append(str(arguments[0]))


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """Files and folders under the canary's that anybody has opened."""
    if not _installed:  # an audit hook stays for ever
        sys.addaudithook(_note)
        _installed.append(True)
    _opened.clear()
    yield _opened
    _opened.clear()


@pytest.mark.needs_room("coordinator/serving/page")
async def test_no_request_reaches_the_file_system(tmp_path, opened) -> None:
    folder = tmp_path / CANARY
    folder.mkdir()
    (folder / "page.js").write_text("secret")
    (folder / "model.onnx").write_bytes(examples()[0].path.read_bytes())
    settings = CoordinatorSettings(
        state_dir=tmp_path / "state",
        mdns=False,
        host_computes=False,
        models=(str(save_tiny(tmp_path)),),
        rate_per_s=0,
    )
    coordinator = Coordinator(settings)
    relative = f"../../../../../../../../../..{folder}"
    names = [f"{folder}/model.onnx", f"{relative}/page.js", str(folder), f"file://{folder}/page.js"]
    routes = sorted(set(every_route()) - {("GET", "/page/events")})
    await coordinator.start()
    transport = httpx.ASGITransport(create_app(coordinator), raise_app_exceptions=False)
    opened.clear()
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            for (method, path), name in product(routes, names):
                for written in (quote(name, safe=""), name, quote(quote(name, safe=""), safe="")):
                    answer = await http.request(
                        method,
                        filled(path, **dict.fromkeys(PARAMETERS, written)),
                        params=dict.fromkeys(("strategy", "plan", "devices", "wire", "stem"), name),
                        headers={"Content-Type": name, "Accept": name, "X-API-Key": name},
                        json={"parameters": {"config": name, "file:1/model.onnx": name}},
                    )
                    unset = "no object detector is configured" in answer.text
                    assert answer.status_code != HTTPStatus.INTERNAL_SERVER_ERROR or unset
                    assert "secret" not in answer.text
    finally:
        await coordinator.stop()
    assert opened == []


def test_a_file_that_is_opened_is_noticed(tmp_path, opened) -> None:
    (tmp_path / CANARY).write_text("x")
    (tmp_path / CANARY).read_text()
    assert opened
