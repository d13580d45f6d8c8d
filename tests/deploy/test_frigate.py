"""The page about Frigate, and the Compose file beside Frigate, say what imbrex and Frigate know."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from typer.main import get_command

from coordinator.doctor.frigate import TIMEOUT_S
from coordinator.serving.app import create_app
from coordinator.settings import HTTP_PORT
from imbrex.cli.app import app
from models.catalogue.installed import VARIABLE
from tests.cli.run_cli import imbrex
from tests.serving.in_place import InPlace

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "frigate"
PAGE = (ROOT / "docs" / "frigate.md").read_text()
DEEPSTACKS_DEFAULT_TIMEOUT_S = 0.1


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def on_the_page() -> tuple[dict[str, Any], dict[str, Any]]:
    """Frigate's configuration, with its `zmq` detector and with DeepStack's."""
    zmq, deepstack = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
    return zmq, deepstack


def given(*words: str) -> dict[str, Any]:
    """What a command line of `imbrex` says, as the command itself reads it."""
    command: Any = get_command(app)
    rest = list(words)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    found: dict[str, Any] = command.make_context("imbrex", rest).params
    return found


async def test_deepstacks_detector_asks_where_imbrex_answers() -> None:
    detector = on_the_page()[1]["detectors"]["imbrex"]
    url = urlsplit(detector["api_url"])
    transport = httpx.ASGITransport(create_app(InPlace()))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = (await client.post(url.path, files={"image": b"crop"})).json()
    assert "no object detector is configured" in answer["error"]
    assert (detector["type"], url.port) == ("deepstack", HTTP_PORT)
    assert detector["api_timeout"] > 5 * DEEPSTACKS_DEFAULT_TIMEOUT_S


def test_frigates_configuration_is_the_pages_and_finds_the_coordinator() -> None:
    page, config = on_the_page()[0], read("config.yml")
    assert {key: config[key] for key in page} == page
    detector = config["detectors"]["imbrex"]
    compose = read("docker-compose.yml")["services"]
    flags = given(*compose["imbrex"]["command"])
    assert (detector["type"], [detector["endpoint"]]) == ("zmq", flags["frigate_zmq"])
    assert detector["request_timeout_ms"] > TIMEOUT_S * 1e3
    # The model is in a folder of this computer.
    folders = [volume.split(":")[1] for volume in compose["frigate"]["volumes"]]
    assert str(Path(config["model"]["path"]).parent) in folders


def test_the_service_keeps_its_state_where_the_image_has_it() -> None:
    compose = read("docker-compose.yml")
    service = compose["services"]["imbrex"]
    assert list(service["environment"]) == [VARIABLE]
    assert service["network_mode"] == compose["services"]["frigate"]["network_mode"] == "host"
    # Models and state outlive the container, where the image keeps them.
    (_, kept), *_ = (volume.split(":") for volume in service["volumes"])
    image = FOLDER / service["build"]["context"] / service["build"]["dockerfile"]
    assert f"VOLUME {kept}\n" in image.read_text()
    assert service["environment"][VARIABLE].startswith(f"{kept}/")
    assert set(compose["volumes"]) == {
        volume.split(":")[0]
        for each in compose["services"].values()
        for volume in each["volumes"]
        if volume[0] not in "./"
    }


def test_page_and_compose_file_trust_the_clusters_own_authority() -> None:
    compose = (FOLDER / "docker-compose.yml").read_text()
    for text in (PAGE, compose):
        assert "secret" not in text.lower()
        lines = re.findall(r"imbrex ((?:cluster \w+|worker --host \S+ --join \w+))", text)
        assert set(lines) == {
            "cluster init",
            "cluster invite",
            "worker --host 0.0.0.0 --join TOKEN",
        }
        assert [given(*line.split())["join"] for line in lines if "join" in line] == ["TOKEN"]
    own = given(
        "coordinator", *re.findall(r"^imbrex coordinator (.*--frigate.*)$", PAGE, re.M)[0].split()
    )
    assert own == given(*read("docker-compose.yml")["services"]["imbrex"]["command"])


def test_the_authority_is_made_where_the_container_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMBREX_COORDINATOR_STATE_DIR", str(tmp_path))
    assert imbrex("cluster", "init").code == 0
    assert (tmp_path / "cluster" / "authority.key.pem").exists()
