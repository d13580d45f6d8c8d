"""What other servers take: HEAD and OPTIONS, slashes, absolute targets, pages behind proxies."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from coordinator.library.repository import read_repository
from coordinator.serving.app import create_app
from coordinator.serving.page.http import FILES
from coordinator.settings import CoordinatorSettings
from models.digits.examples import examples
from tests.serving.in_place import InPlace, picture
from tests.serving.processes import Service
from tests.serving.routes import every_route, filled

ENDLESS = "/page/events"


def spoken(service: Service, text: str) -> tuple[str, bytes]:
    """Head and body of the answer to a request as it is written."""
    host, port = service.host_port.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(text.replace("\n", "\r\n").encode())
        answer = b""
        while piece := line.recv(1 << 16):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode(), body


async def test_head_is_get_without_a_body(http: httpx.AsyncClient) -> None:
    for method, path in every_route():
        if method != "GET" or path == ENDLESS:
            continue
        url = filled(path, model="tiny", version="1", device="worker-1")
        asked, shown = await http.head(url), await http.get(url)
        assert (asked.status_code, asked.content) == (shown.status_code, b""), url
        assert asked.headers.get("content-type") == shown.headers.get("content-type")


@pytest.mark.needs_room("coordinator/serving/page")
def test_head_of_what_never_ends_and_of_a_picture(service: Service) -> None:
    for path in (ENDLESS, "/", "/healthz", "/page/sample"):
        head, body = spoken(
            service, f"HEAD {path} HTTP/1.1\nHost: localhost\nConnection: close\n\n"
        )
        assert (head.split()[1], body) == ("200", b""), path


async def test_options_tells_methods_and_allows_other_sites_nothing(
    http: httpx.AsyncClient,
) -> None:
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    for _, path in every_route():
        url = filled(path, model="tiny", version="1", device="worker-1")
        answer = await http.options(url, headers=asked)
        assert (answer.status_code, answer.content) == (204, b""), url
        allowed = set(answer.headers["allow"].split(", "))
        assert {method for method, other in every_route() if other == path} <= allowed
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert (await http.options("/nothing")).status_code == 404
    wrong = (await http.delete("/v1/models")).json()["error"]["cause"]
    assert "DELETE" in wrong
    assert "but GET, HEAD" in wrong


@pytest.mark.parametrize(
    "path", ["//v1/models", "/v1//models", "/v1/models/", "///v1///models//", "/v1/models/?a=b"]
)
async def test_slashes_too_many_are_none(http: httpx.AsyncClient, path: str) -> None:
    url = httpx.URL("http://test").copy_with(raw_path=path.encode())
    answer = await http.get(url)
    assert (answer.status_code, answer.json()) == (200, (await http.get("/v1/models")).json())


@pytest.mark.needs_room("coordinator/serving/deepstack")
def test_deepstacks_path_with_a_slash_and_a_part_without_a_file_name(service: Service) -> None:
    image = examples()[0].path.read_bytes()
    assert len(image) > 16 << 10  # longer than a field may be
    url = f"{service.url}/v1/vision/custom/digits/"
    wanted = httpx.post(url, files={"image": ("a.png", image)}).json()
    assert wanted["success"], wanted
    for head in (
        'Content-Disposition: form-data; name="image"',
        'Content-Disposition: form-data; name="image"\r\nContent-Type: image/png',
        'content-disposition: form-data; name=image; filename=""',
    ):
        body = b"--x\r\n" + head.encode() + b"\r\n\r\n" + image + b"\r\n--x--\r\n"
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        answer = httpx.post(url, content=body, headers=kind).json()
        assert answer["predictions"] == wanted["predictions"]
    other = httpx.post(url, files={"file": ("a.png", image)}).json()
    assert "'image'" in str(other)
    assert "'file'" in str(other)


def test_an_absolute_target_is_that_of_its_path(service: Service) -> None:
    """As a client writes it to a proxy: its host counts, not `Host`."""
    end = "Connection: close\n\n"
    for target, host, status in (
        (f"{service.url}/v1/models", "localhost", "200"),
        (f"{service.url}//v1/models/?a=b", "localhost", "200"),
        ("HTTP://localhost", "localhost", "200"),
        ("http://localhost/v1/models", "evil.example", "200"),
        ("http://evil.example/v1/models", "localhost", "403"),
        ("http://me:secret@evil.example/v1/models", "localhost", "403"),
        ("//evil.example/v1/models", "localhost", "404"),
    ):
        head, _ = spoken(service, f"GET {target} HTTP/1.1\nHost: {host}\n{end}")
        assert head.split()[1] == status, (target, head)


def proxied(**settings: object) -> httpx.AsyncClient:
    told = CoordinatorSettings.model_validate({"models": ("tiny",), **settings})
    transport = httpx.ASGITransport(create_app(InPlace(told)), raise_app_exceptions=False)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://192.168.1.7:8460")


ORDER = ("DELETE", "/v1/plans/tiny")


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("port", ["", ":443", ":8443"])
@pytest.mark.parametrize("host", ["imbrex.home", "imbrex.home:8443", "IMBREX.home.", "192.168.1.7"])
async def test_a_page_behind_a_proxy_is_our_own(scheme: str, port: str, host: str) -> None:
    async with proxied(host_names=("imbrex.home",)) as client:
        headers = {"Host": host, "Origin": f"{scheme}://imbrex.home{port}"}
        answer = await client.request(*ORDER, headers=headers)
        assert answer.status_code != 403, answer.text
        image = {**headers, "Content-Type": "image/png"}
        answer = await client.post("/v1/models/tiny/infer", content=picture(), headers=image)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "origin",
    [
        *("https://evil.example", "http://evil.example", "https://imbrex.home.evil.example"),
        *("https://evil.example:8460", "http://imbrex.home@evil.example", "null", "", "x"),
        *("https://notimbrex.home", "file://imbrex.home", "http://[imbrex.home"),
        *("http://192.168.1.7", "https://192.168.1.7:8460", "http://192.168.1.7:8123"),
        *("http://localhost:8460", "http://tls.home"),
    ],
)
@pytest.mark.parametrize("host", ["imbrex.home", "192.168.1.7:8460", "localhost"])
async def test_pages_of_others_stay_refused(origin: str, host: str) -> None:
    if (host, origin) == ("localhost", "http://localhost"):
        return
    async with proxied(host_names=("imbrex.home",), tls_names=("tls.home",)) as client:
        refused = await client.request(*ORDER, headers={"Host": host, "Origin": origin})
        assert refused.status_code == 403
        told = refused.json()["error"]
        assert origin[:80] in told["cause"]
        assert host in told["cause"]
        assert "host_names" in told["cure"]


async def test_a_default_port_is_the_same_written_or_not() -> None:
    async with proxied() as client:
        headers = {"Host": "localhost:80", "Origin": "http://localhost"}
        assert (await client.request(*ORDER, headers=headers)).status_code != 403


async def test_the_page_works_below_any_path(http: httpx.AsyncClient) -> None:
    """Nothing in its files begins with a slash."""
    links = re.compile(r'(?:href|src)="([^"]*)')
    for at in ("/", "/docs"):
        html = (await http.get(at)).text
        for found in links.finditer(html):
            link = found[1]
            assert not link.startswith("/"), link
            if not link.startswith("#"):
                there = await http.get(urljoin(f"http://test{at}", link))
                assert there.status_code == 200, link
    for path in FILES.values():
        if path.suffix == ".js":
            assert not re.search(r"""["'`]/[a-z]""", path.read_text()), path
    moved = await http.get("/docs/", follow_redirects=False)
    assert (moved.status_code, moved.headers["location"]) == (308, "../docs")


def test_tritons_folder_of_one_model(tmp_path: Path) -> None:
    folder = tmp_path / "net" / "1" / "model.onnx"
    folder.mkdir(parents=True)
    (tmp_path / "other" / "1").mkdir(parents=True)
    (tmp_path / "other" / "1" / "model.plan").write_bytes(b"")
    (folder / "model.onnx").write_bytes(b"onnx")
    found = read_repository(tmp_path)
    assert found["net"].latest == folder / "model.onnx"
    assert "other/1/model.onnx" in found["other"].problem
    assert "other/1/model.plan" in found["other"].problem
