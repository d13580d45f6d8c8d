"""The OpenAPI document has a schema for every JSON answer of ours, and answers follow it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import httpx
import jsonschema_rs
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from coordinator.answers import Finding
from coordinator.costs.affine import LayerRates
from coordinator.costs.cluster import EndpointOverhead
from coordinator.costs.regression import DeviceProfile, LayerRegression
from coordinator.serving.v1 import answers
from coordinator.tasks.plan import TrafficBytes

# What has no one shape: an answer of any kind, or another party's contract.
ANY = {"/metrics", "/", "/page/sample"}


async def document(http: httpx.AsyncClient) -> dict[str, Any]:
    read: dict[str, Any] = (await http.get("/openapi.json")).json()
    return read


def schema(found: dict[str, Any], path: str, method: str = "get") -> dict[str, Any]:
    answers = found["paths"][path][method]["responses"]
    good = answers.get("200") or answers["202"]
    told: dict[str, Any] = good["content"]["application/json"]["schema"]
    if "$ref" in told:
        told = found["components"]["schemas"][told["$ref"].rpartition("/")[2]]
    return {**told, "components": found["components"]}


@pytest.mark.parametrize(
    ("answered", "known"),
    [
        (answers.Profile, DeviceProfile),
        (answers.LayerFit, LayerRegression),
        (answers.Rates, LayerRates),
        (answers.EndpointCosts, EndpointOverhead),
        (answers.Moved, TrafficBytes),
    ],
)
def test_an_answer_leaves_out_nothing_that_is_known(
    answered: type[BaseModel], known: type[Any]
) -> None:
    assert list(answered.model_fields) == [each.name for each in fields(known)]


def test_an_answer_that_is_not_of_its_schema_is_refused() -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Finding).validate_python({"code": "x", "severity": "loud", "device": ""})


async def test_no_answer_of_ours_is_just_an_object(http: httpx.AsyncClient) -> None:
    found = await document(http)
    ours = [path for path in found["paths"] if path.startswith("/v1")]
    assert len(ours) > 6
    for path in ours:
        for method in found["paths"][path]:
            told = schema(found, path, method)
            assert told.get("properties") or told.get("anyOf"), (method, path, told)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/devices", "/v1/devices"),
        ("/v1/models", "/v1/models"),
        ("/v1/plans/{model}", "/v1/plans/tiny"),
    ],
)
async def test_answers_follow_their_schemas(http: httpx.AsyncClient, path: str, asked: str) -> None:
    answer = (await http.get(asked)).json()
    told = schema(await document(http), path)
    jsonschema_rs.validate(told, answer)
    first, *_ = told["properties"]
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(told, {**answer, first: 7.5})


async def test_a_link_that_is_not_known_yet_is_null(http: httpx.AsyncClient) -> None:
    """The device of these tests has no measured bandwidth."""
    (device,) = (await http.get("/v1/devices")).json()["devices"]
    assert device["mbps"] is None


@pytest.mark.needs_room("coordinator/serving/deepstack")
@pytest.mark.needs_room("coordinator/serving/oip")
@pytest.mark.needs_room("coordinator/serving/page")
async def test_every_protocol_is_documented_with_its_own_errors(http: httpx.AsyncClient) -> None:
    found = await document(http)
    paths = found["paths"]
    assert {"/v2", "/v2/models/{name}/infer", "/v2/repository/index"} <= paths.keys()
    assert {"/v1/vision/detection", "/v1/vision/custom/{model}", "/v1/status/ping"} <= paths.keys()
    assert not any(path.startswith(("/page", "/metrics")) for path in paths)
    for path, methods in paths.items():
        for method, told in methods.items():
            answers = told["responses"]
            own = path.startswith("/v2") or "/vision/" in path or path.endswith("/ping")
            assert ("4XX" in answers) == own, (method, path)
            refusal = answers["4XX" if own else "404"]["content"]["application/json"]["schema"]
            fields = found["components"]["schemas"][refusal["$ref"].rpartition("/")[2]]
            assert "error" in fields["required"]


async def test_examples_follow_their_schemas(http: httpx.AsyncClient) -> None:
    found = await document(http)
    seen = 0
    for each in found["components"]["schemas"].values():
        for example in each.get("examples", ()):
            jsonschema_rs.validate({**each, "components": found["components"]}, example)
            seen += 1
    assert seen >= 2
