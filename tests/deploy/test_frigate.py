"""The Compose file beside Frigate says what imbrex and Frigate understand."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import httpx
import yaml

from coordinator.serving.app import create_app
from coordinator.settings import HTTP_PORT, load_settings
from models.installed import VARIABLE
from tests.cli.run_cli import imbrex
from tests.serving.in_place import InPlace

FOLDER = Path(__file__).parents[2] / "deploy" / "frigate"
FRIGATES_DEFAULT_TIMEOUT_S = 0.1


def read(name: str):
    return yaml.safe_load((FOLDER / name).read_text())


async def test_frigate_asks_where_imbrex_answers() -> None:
    detector = read("config.yml")["detectors"]["imbrex"]
    url = urlsplit(detector["api_url"])
    transport = httpx.ASGITransport(create_app(InPlace()))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = (await client.post(url.path, files={"image": b"crop"})).json()
    assert "no object detector is configured" in answer["error"]
    assert (detector["type"], url.port) == ("deepstack", HTTP_PORT)
    assert detector["api_timeout"] > 5 * FRIGATES_DEFAULT_TIMEOUT_S


def test_the_command_and_its_settings_exist() -> None:
    compose = read("docker-compose.yml")
    service = compose["services"]["imbrex"]
    (command,) = service["command"]
    assert f"Usage: imbrex {command}" in imbrex(command, "--help").out
    secret, models = service["environment"]
    setting = secret.removeprefix("IMBREX_COORDINATOR_").lower()
    assert setting in type(load_settings({})).model_fields
    assert models == VARIABLE
    assert service["network_mode"] == compose["services"]["frigate"]["network_mode"] == "host"
    # Models and state outlive the container, where the image keeps them.
    (_, kept), *_ = (volume.split(":") for volume in service["volumes"])
    image = FOLDER / service["build"]["context"] / service["build"]["dockerfile"]
    assert f"VOLUME {kept}\n" in image.read_text()
    assert service["environment"][models].startswith(f"{kept}/")
    assert set(compose["volumes"]) == {
        volume.split(":")[0]
        for each in compose["services"].values()
        for volume in each["volumes"]
        if volume[0] not in "./"
    }
