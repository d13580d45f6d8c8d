"""Pictures and tensors in, answers out."""

from __future__ import annotations

import io
import json

import httpx
import numpy as np
import pytest
from PIL import Image

from coordinator.serving.common import names
from coordinator.serving.common.tensors import load_tensors, write_tensors
from models.run.reference import EQUAL, compare
from models.vision.preprocess import decode_image, image_to_pixels
from tests.serving.in_place import SIDECAR, InPlace, picture

URL = "/v1/models/tiny/infer"
TIMES = {"queue", "decode", "scatter", "compute", "gather", "total"}


async def test_a_picture_as_body_is_answered_as_the_contract_says(http: httpx.AsyncClient) -> None:
    response = await http.post(URL, content=picture(), headers={"Content-Type": "image/png"})
    assert response.status_code == 200
    answer = response.json()
    assert (answer["model"], answer["task"]) == ("tiny", "classification")
    assert (answer["plan_version"], answer["devices"]) == (3, ["0123456789abcdef"])
    assert answer["bytes"] == {"scatter": 10, "gather": 20, "halo": 0}
    assert set(answer["timing_ms"]) == TIMES
    *phases, total = (answer["timing_ms"][key] for key in sorted(TIMES))
    assert total == pytest.approx(sum(phases), abs=0.01)
    assert [set(each) for each in answer["predictions"]] == [{"label", "index", "score"}] * 2
    assert response.headers[names.REQUEST_ID_HEADER] == answer["request_id"]


@pytest.mark.parametrize("kind", ["image/jpeg", "image/whatever", "application/octet-stream", ""])
async def test_a_picture_is_known_by_its_bytes(http: httpx.AsyncClient, kind: str) -> None:
    headers = {"Content-Type": kind} if kind else {}
    response = await http.post(URL, content=picture(), headers=headers)
    assert response.status_code == 200, response.text


async def test_a_picture_as_form(http: httpx.AsyncClient) -> None:
    as_body = await http.post(URL, content=picture())
    as_form = await http.post(URL, files={"image": ("image", picture())}, data={"other": "1"})
    assert as_form.json()["predictions"] == as_body.json()["predictions"]


async def test_raw_outputs_equal_the_whole_model(
    http: httpx.AsyncClient, coordinator: InPlace
) -> None:
    body = picture(kind="BMP")
    pixels, _ = image_to_pixels(decode_image(body), SIDECAR.picture)
    tensor = SIDECAR.picture.pixels.values(pixels)
    response = await http.post(URL, content=body, headers={"Accept": names.NPZ})
    assert response.headers["Content-Type"] == names.NPZ
    whole = coordinator.whole.run({"image": tensor})
    assert compare(load_tensors(response.content), whole) == EQUAL
    assert compare({"fc": whole["fc"] + 1e-3}, whole) != EQUAL
    summary = json.loads(response.headers[names.ANSWER_HEADER])
    assert set(summary["timing_ms"]) == TIMES
    assert "predictions" not in summary


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
async def test_the_annotated_picture(http: httpx.AsyncClient, kind: str) -> None:
    accepted = {"Accept": f"image/{kind.lower()}"}
    response = await http.post(URL, content=picture(400, 300), headers=accepted)
    assert response.headers["Content-Type"] == accepted["Accept"]
    answer = Image.open(io.BytesIO(response.content))
    assert answer.format == kind
    drawn = np.asarray(answer.convert("RGB")).astype(int)
    sent = np.asarray(Image.open(io.BytesIO(picture(400, 300)))).astype(int)
    assert drawn.shape == sent.shape
    assert np.abs(drawn - sent).max() > 100


async def test_several_pictures_of_one_call_are_answered_in_their_order(
    http: httpx.AsyncClient,
) -> None:
    sent = [picture(400, 300), picture(40, 30), picture(100, 100)]
    alone = [(await http.post(URL, content=each)).json()["predictions"] for each in sent]
    files = [("image", (f"{n}.png", each)) for n, each in enumerate(sent)]
    answer = await http.post(URL, files=files)
    assert answer.status_code == 200
    assert [each["predictions"] for each in answer.json()["answers"]] == alone
    files[1] = ("image", ("1.png", b"no picture"))
    refused = await http.post(URL, files=files)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_image")


@pytest.mark.parametrize("model", ["bare", "tiny"])
async def test_tensors_are_answered_like_the_whole_model(
    http: httpx.AsyncClient, coordinator: InPlace, model: str
) -> None:
    feeds = {"image": np.random.default_rng(2).standard_normal((1, 3, 16, 16), np.float32)}
    response = await http.post(
        f"/v1/models/{model}/infer",
        content=write_tensors(feeds),
        headers={"Content-Type": names.NPZ, "Accept": names.NPZ},
    )
    assert compare(load_tensors(response.content), coordinator.whole.run(feeds)) == EQUAL


async def test_a_picture_may_be_sent_as_its_pixels(
    http: httpx.AsyncClient, coordinator: InPlace
) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (1, 3, 16, 16), np.uint8)
    headers = {"Content-Type": names.NPZ, "Accept": names.NPZ}
    body = write_tensors({"image": pixels})
    response = await http.post(URL, content=body, headers=headers)
    whole = coordinator.whole.run({"image": SIDECAR.input.pixels.values(pixels)})
    assert compare(load_tensors(response.content), whole) == EQUAL
    # A model that takes no pictures takes no pixels either.
    response = await http.post("/v1/models/bare/infer", content=body, headers=headers)
    assert response.status_code == 400
    assert "float32" in response.json()["error"]["cure"]


async def test_tensors_come_back_as_json_by_default(http: httpx.AsyncClient) -> None:
    file = io.BytesIO()
    np.savez_compressed(file, image=np.asfortranarray(np.ones((1, 3, 16, 16), np.float32)))
    response = await http.post("/v1/models/bare/infer", content=file.getvalue())
    (tensor,) = response.json()["predictions"]
    assert (tensor["name"], tensor["shape"], len(tensor["data"])) == ("fc", [1, 3], 3)
    assert response.json()["task"] == "tensor"


async def test_the_best_liked_type_is_given(http: httpx.AsyncClient) -> None:
    for accept, given in (
        ("text/html, */*;q=0.1", "application/json"),
        ("image/*", "image/png"),
        ("application/json;q=0.5, image/png", "image/png"),
        ("application/x-npz;q=0, */*", "application/json"),
    ):
        response = await http.post(URL, content=picture(), headers={"Accept": accept})
        assert response.headers["Content-Type"] == given, accept


async def test_devices_models_plans_and_reference_are_served(http: httpx.AsyncClient) -> None:
    devices = (await http.get("/v1/devices")).json()["devices"]
    assert (devices[0]["name"], devices[0]["state"], devices[0]["mbps"]) == ("pi-1", "ready", None)
    assert (await http.get("/v1/models")).json()["models"][0]["name"] == "tiny"
    plan = (await http.get("/v1/plans/tiny")).json()
    assert (plan["model"], plan["strategy"], plan["version"]) == ("tiny", "aofl", 3)
    assert set(plan["bytes"]) == {"scatter", "gather", "halo"}
    baseline = (await http.post("/v1/models/tiny/baseline")).json()
    assert (baseline["latency_s"], baseline["threads"]) == (0.5, 4)
    assert (await http.get("/healthz")).json()["status"] == "ok"
    assert (await http.get("/readyz")).status_code == 200
    assert "/v1/models/{model}/infer" in (await http.get("/openapi.json")).json()["paths"]
    assert (await http.get("/docs")).status_code == 200
