"""A protocol more is a package and a line in `app.py`."""

import sys
from types import SimpleNamespace

import httpx
import pytest
from fastapi import APIRouter

from coordinator.serving import app as application
from coordinator.serving.common.access import asks
from coordinator.serving.common.keys import Keys, Role
from coordinator.serving.common.parameters import TheCoordinator
from coordinator.settings import CoordinatorSettings
from coordinator.trust.cluster_state import ClusterState
from protos.errors import NotFound
from tests.serving.in_place import InPlace

toy = APIRouter()


@toy.get("/toy/devices")
@asks
async def devices(coordinator: TheCoordinator) -> list[str]:
    """The names of all devices."""
    return [each.name for each in coordinator.device_statuses()]


silent = APIRouter()


@silent.get("/toy/silent")
async def says_nothing() -> str:
    """Whoever may call it."""
    return "?"


bodiless = APIRouter()


@bodiless.post("/toy/bodiless")
@asks
async def says_no_body() -> str:
    """Whatever may come."""
    return "?"


async def test_a_protocol_is_a_package_and_a_line(monkeypatch, tmp_path):
    monkeypatch.setattr(application, "ROOMS", (*application.ROOMS, SimpleNamespace(router=toy)))
    settings = CoordinatorSettings(state_dir=tmp_path, host_names=("test",))
    key = Keys(ClusterState(tmp_path)).add("someone", Role.INFER)
    app = application.create_app(InPlace(settings))  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        refused = await client.get("/toy/devices")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "no_key")
        answered = await client.get("/toy/devices", headers={"Authorization": f"Bearer {key}"})
        assert answered.status_code == 200
        document = (await client.get("/openapi.json")).json()
        assert "/toy/devices" in document["paths"]


@pytest.mark.parametrize(
    ("router", "missing"),
    [(silent, "declares no access rule"), (bodiless, "does not declare its body")],
)
def test_a_protocol_that_lacks_a_rule_does_not_start(monkeypatch, tmp_path, router, missing):
    rooms = (*application.ROOMS, SimpleNamespace(router=router))
    monkeypatch.setattr(application, "ROOMS", rooms)
    with pytest.raises(AssertionError, match=missing):
        application.create_app(InPlace(CoordinatorSettings(state_dir=tmp_path)))  # type: ignore[arg-type]


def test_an_interface_that_is_not_installed_is_absent_unless_settings_ask_for_it(
    monkeypatch, tmp_path
):
    monkeypatch.setitem(sys.modules, "coordinator.serving.frigate.server", None)
    monkeypatch.setitem(sys.modules, "coordinator.serving.page.http", None)
    settings = CoordinatorSettings(state_dir=tmp_path)
    app = application.create_app(InPlace(settings))  # type: ignore[arg-type]
    names = [type(each).__name__ for each in app.state.interfaces]
    assert names == ["OpenInference", "DeepStack"]
    asking = settings.model_copy(update={"frigate_zmq": ("ipc:///run/f",)})
    with pytest.raises(NotFound, match=r"lacks coordinator\.serving\.frigate"):
        application.create_app(InPlace(asking))  # type: ignore[arg-type]
