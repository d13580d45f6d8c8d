"""Every bad input gets the one shape with a cause and a cure, and the next request is served."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator
from http import HTTPStatus

import httpx
import numpy as np
import pytest
from numpy.lib import format as npy
from structlog.testing import capture_logs

from coordinator.serving.common import names
from coordinator.serving.common.errors import status_of
from coordinator.serving.common.tensors import write_tensors
from protos.errors import (
    BadConfiguration,
    BadRequest,
    ImbrexError,
    Infeasible,
    LostWorker,
    NotFound,
    PeerViolation,
    TooLittleMemory,
    Unavailable,
)
from tests.serving.in_place import LIMIT_BYTES, InPlace, blank, picture

URL = "/v1/models/tiny/infer"
BARE = "/v1/models/bare/infer"
PNG = {"Content-Type": "image/png"}
NPZ = {"Content-Type": names.NPZ}
SHAPE = (1, 3, 16, 16)


def fields(response: httpx.Response) -> dict[str, str]:
    """The error's fields, after checking its shape."""
    assert list(response.json()) == ["error"]
    error: dict[str, str] = response.json()["error"]
    assert set(error) == {"code", "message", "cause", "cure"}
    assert all(error.values())
    return error


async def refused(
    http: httpx.AsyncClient, url: str, body: bytes, headers: dict[str, str], status: int
) -> dict[str, str]:
    response = await http.post(url, content=body, headers=headers)
    assert response.status_code == status, response.text
    served = await http.post(URL, content=picture(), headers=PNG)
    assert served.status_code == 200
    return fields(response)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b"", "empty"),
        (b"this is not an image at all", "not an image"),
        (picture()[:-200], "truncated"),
        (blank(20_000, 10), "20000 x 10"),
        (blank(6_000, 6_000), "6000 x 6000"),
    ],
    ids=["empty", "text", "truncated", "20000-pixel", "36-megapixel"],
)
async def test_bodies_that_are_no_usable_picture(
    http: httpx.AsyncClient, body: bytes, cause: str
) -> None:
    error = await refused(http, URL, body, PNG, 400)
    assert cause in error["cause"]
    assert error["code"] == "bad_image"


async def test_a_wrong_content_type(http: httpx.AsyncClient) -> None:
    for kind in ("text/plain", "application/json", "video/mp4"):
        error = await refused(http, URL, picture(), {"Content-Type": kind}, 415)
        assert kind in error["cause"]
    error = await refused(
        http, URL, picture(), {"Content-Type": "application/x-www-form-urlencoded"}, 415
    )
    assert "curl" in error["cure"]
    assert (await refused(http, BARE, picture(), PNG, 415))["cure"].count(names.NPZ)


async def test_forms_without_the_picture(http: httpx.AsyncClient) -> None:
    response = await http.post(URL, files={"picture": ("a.png", picture())})
    assert (response.status_code, fields(response)["code"]) == (400, "bad_request")
    response = await http.post(URL, files={"other": ("", b"")}, data={"image": "text"})
    assert response.status_code == 400
    broken = {"Content-Type": "multipart/form-data; boundary=x"}
    await refused(http, URL, b"--y\r\nnonsense", broken, 400)
    await refused(http, URL, picture(), {"Content-Type": "multipart/form-data"}, 400)


async def test_an_unknown_model(http: httpx.AsyncClient) -> None:
    error = await refused(http, "/v1/models/nothing/infer", picture(), PNG, 404)
    assert "nothing" in error["cause"]
    assert (await http.post("/v1/models/nothing/baseline")).status_code == 404
    assert (await http.get("/v1/plans/nothing")).status_code == 404


@pytest.mark.parametrize("name", ["other.onnx", "bare.onnx", "%2Fsomewhere%2Fbare.onnx", "..%2Fx"])
async def test_files_cannot_be_named_over_the_network(http: httpx.AsyncClient, name: str) -> None:
    await refused(http, f"/v1/models/{name}/infer", picture(), PNG, 404)


async def test_coordinator_without_workers_is_unavailable(
    http: httpx.AsyncClient, coordinator: InPlace
) -> None:
    coordinator.no_workers = True
    response = await http.post(URL, content=picture(), headers=PNG)
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert "imbrex worker" in fields(response)["cure"]
    ready = await http.get("/readyz")
    assert (ready.status_code, fields(ready)["cause"]) == (503, "no worker is connected")
    assert (await http.get("/v1/plans/tiny")).status_code == 503
    assert (await http.get("/healthz")).status_code == 200
    coordinator.no_workers = False
    assert (await http.post(URL, content=picture(), headers=PNG)).status_code == 200


async def test_a_body_beyond_the_limit_is_never_kept(http: httpx.AsyncClient) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 50 * LIMIT_BYTES:
            sent += 10_000
            yield bytes(10_000)

    response = await http.post(URL, content=endless(), headers=PNG)
    assert (response.status_code, fields(response)["code"]) == (413, "body_too_large")
    assert sent < 3 * LIMIT_BYTES
    error = await refused(http, URL, bytes(LIMIT_BYTES + 1), PNG, 413)
    assert str(LIMIT_BYTES) in error["cause"]
    await refused(http, URL, bytes(LIMIT_BYTES * 40), PNG, 413)
    await refused(http, URL, bytes(LIMIT_BYTES), PNG, 400)  # as long as allowed, but no picture


def archive(name: str, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(name, content)
    return file.getvalue()


def claiming(shape: tuple[int, ...], dtype: str = "<f4", data: bytes = b"") -> bytes:
    """An array whose header claims anything."""
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b"", "empty"),
        (b"PK nothing of the kind", "not a usable .npz"),
        (write_tensors({"other": np.ones(SHAPE, np.float32)}), "'image' is missing"),
        (write_tensors({"image": np.ones(SHAPE, np.float32), "b": np.ones(1)}), "'b' is unknown"),
        (write_tensors({"image": np.ones((1, 3, 8, 8), np.float32)}), "float32[1, 3, 8, 8]"),
        (write_tensors({"image": np.ones(SHAPE, np.float64)}), "float64"),
        (archive("image.npy", claiming((1 << 40,))), "1099511627776"),
        (archive("image.npy", claiming(SHAPE, data=b"short")), "ends after 5"),
        (archive("image.npy", claiming(SHAPE, "|O", b"pickled")), "object"),
        (archive("image.npy", b"no array"), "not a usable .npz"),
        (write_tensors({"image": np.ones(SHAPE, np.float32)})[:-30], "not a usable .npz"),
    ],
)
async def test_tensors_that_do_not_fit(http: httpx.AsyncClient, body: bytes, cause: str) -> None:
    assert cause in (await refused(http, BARE, body, NPZ, 400))["cause"]


async def test_a_bomb_is_not_unpacked(http: httpx.AsyncClient) -> None:
    bomb = archive("image.npy", claiming(SHAPE, data=bytes(100_000_000)))
    assert len(bomb) < LIMIT_BYTES
    response = await http.post(BARE, content=bomb, headers=NPZ)  # what is wanted comes first
    assert response.status_code == 200


async def test_answers_that_cannot_be_given(http: httpx.AsyncClient) -> None:
    error = await refused(http, URL, picture(), {**PNG, "Accept": "text/html"}, 406)
    assert names.JSON in error["cure"]
    tensors = write_tensors({"image": np.ones(SHAPE, np.float32)})
    await refused(http, URL, tensors, {**NPZ, "Accept": "image/png"}, 406)


async def test_the_frameworks_own_errors(http: httpx.AsyncClient) -> None:
    nowhere = await http.get("/v1/nowhere")
    assert (nowhere.status_code, fields(nowhere)["code"]) == (404, "not_found")
    method = await http.get(URL)
    assert (method.status_code, fields(method)["code"]) == (405, "method_not_allowed")
    assert method.headers["Allow"] == "POST"


async def test_faults_of_ours_do_not_leak(http: httpx.AsyncClient, coordinator: InPlace) -> None:
    coordinator.fails_with = RuntimeError("the secret is hunter2")
    with capture_logs() as logs:
        response = await http.post(URL, content=picture(), headers=PNG)
    assert (response.status_code, fields(response)["code"]) == (500, "internal")
    assert "hunter2" not in response.text
    assert [entry["exc_info"] for entry in logs] == [coordinator.fails_with]
    coordinator.fails_with = None
    assert (await http.post(URL, content=picture(), headers=PNG)).status_code == 200


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (BadRequest, HTTPStatus.BAD_REQUEST),
        (NotFound, HTTPStatus.NOT_FOUND),
        (Infeasible, HTTPStatus.UNPROCESSABLE_ENTITY),
        (TooLittleMemory, HTTPStatus.SERVICE_UNAVAILABLE),
        (Unavailable, HTTPStatus.SERVICE_UNAVAILABLE),
        (LostWorker, HTTPStatus.SERVICE_UNAVAILABLE),
        (PeerViolation, HTTPStatus.BAD_GATEWAY),
        (BadConfiguration, HTTPStatus.INTERNAL_SERVER_ERROR),
        (ImbrexError, HTTPStatus.INTERNAL_SERVER_ERROR),
    ],
)
async def test_errors_have_the_status_of_the_table(
    http: httpx.AsyncClient, coordinator: InPlace, kind: type[ImbrexError], status: HTTPStatus
) -> None:
    coordinator.fails_with = kind(cause="this happened", cure="Do that")
    response = await http.post(URL, content=picture(), headers=PNG)
    assert response.status_code == status == status_of(coordinator.fails_with)
    assert fields(response) == {
        "code": kind.code,
        "message": "this happened. Do that",
        "cause": "this happened",
        "cure": "Do that",
    }
