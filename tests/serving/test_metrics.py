"""What Prometheus reads, and that the dashboard asks only for what is there."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from coordinator.serving.metrics.http import cause_kind
from protos.errors import Unavailable
from tests.serving.in_place import InPlace, picture
from tests.serving.processes import Service
from tests.serving.test_oip_grpc import values

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "imbrex.json"


def read(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_plain_route(http: httpx.AsyncClient, coordinator: InPlace) -> None:
    response = await http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    modern = await http.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert modern.headers["Content-Type"].startswith("application/openmetrics-text")
    assert modern.text.endswith("# EOF\n")
    coordinator.waiting = 7
    assert read((await http.get("/metrics")).text)["imbrex_queue_depth", ()] == 7


async def test_requests_are_counted_by_outcome(
    http: httpx.AsyncClient, coordinator: InPlace
) -> None:
    for _ in range(3):
        await http.post("/v1/models/tiny/infer", content=picture())
    coordinator.fails_with = Unavailable(cause="full", cure="Wait")
    await http.post("/v1/models/tiny/infer", content=picture())
    await http.post("/v1/models/nobody's/infer", content=picture())
    found = read((await http.get("/metrics")).text)
    asked = {key: value for key, value in found.items() if key[0] == "imbrex_requests_total"}
    assert asked == {
        ("imbrex_requests_total", (("model", "tiny"), ("outcome", "ok"))): 3,
        ("imbrex_requests_total", (("model", "tiny"), ("outcome", "unavailable"))): 1,
    }
    assert found["imbrex_compute_seconds_sum", (("model", "tiny"),)] == pytest.approx(3 * 0.003)
    assert found["imbrex_request_seconds_count", (("model", "tiny"),)] == 3


@pytest.mark.needs_room("coordinator/serving/oip")
def test_of_real_processes(service: Service) -> None:
    httpx.post(f"{service.url}/v2/models/stored/infer", content=_body(), timeout=30)
    text = httpx.get(f"{service.url}/metrics", timeout=30).text
    found = read(text)
    names = {dict(labels).get("name") for name, labels in found if name == "imbrex_device_ready"}
    assert names == {"worker-1", "worker-2"}
    tiles = [value for (name, _), value in found.items() if name == "imbrex_tile_seconds_count"]
    assert sum(tiles) >= 1
    sent = [value for (name, _), value in found.items() if name == "imbrex_device_bytes_total"]
    assert sum(sent) > values().nbytes
    causes = {dict(labels)["cause"] for name, labels in found if name == "imbrex_replans_total"}
    assert causes <= {"first_use", "devices", "measured", "asked_for", "period"}
    assert found["imbrex_plan_version", (("model", "digits"),)] >= 1
    missing = [name for name in _asked_for() if not re.search(rf"^{name}[{{ ]", text, re.M)]
    # These have samples only once such a thing has happened, or where a sensor is.
    assert set(missing) <= {"imbrex_retried_tasks_total", "imbrex_device_temperature_celsius"}
    declared = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    base = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in _asked_for()}
    assert base <= declared | {re.sub(r"_total$", "", name) for name in declared}


def _body() -> bytes:
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 3, 16, 16]}
    return json.dumps({"inputs": [{**tensor, "data": values().ravel().tolist()}]}).encode()


def _asked_for() -> set[str]:
    """Every metric that the dashboard names."""
    document = json.loads(DASHBOARD.read_text())
    texts = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    texts += [each["query"]["query"] for each in document["templating"]["list"][1:]]
    found = {name for text in texts for name in re.findall(r"\bimbrex_\w+", text)}
    assert len(found) > 15
    return found


def test_every_panel_shows_the_chosen_clusters_alone() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    for expression in expressions:
        metrics = re.findall(r"imbrex_\w+", expression)
        assert metrics
        assert expression.count('cluster=~"$cluster"') == len(metrics), expression


def test_the_dashboard_lies_on_its_grid() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_causes_have_few_kinds() -> None:
    assert cause_kind("link of 0123 measured") == "measured"
    assert cause_kind("first use") == "first_use"
    assert cause_kind("worker-1 lost") == "devices"


async def test_the_log_names_request_plan_and_devices(
    http: httpx.AsyncClient, coordinator: InPlace
) -> None:
    with capture_logs() as logs:
        answer = (await http.post("/v1/models/tiny/infer", content=picture())).json()
        coordinator.fails_with = Unavailable(cause="full", cure="Wait")
        await http.post("/v1/models/tiny/infer", content=picture())
    good, bad = (line for line in logs if "request" in line)
    assert good["request"] == answer["request_id"]
    assert (good["plan"], good["devices"]) == (answer["plan_version"], answer["devices"])
    assert (bad["event"], bad["code"], bad["cause"]) == ("request failed", "unavailable", "full")


async def test_further_addresses_and_sizes_add_no_series(
    http: httpx.AsyncClient, coordinator: InPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (device,), (model,) = coordinator.device_statuses(), coordinator.statuses()
    alias = replace(device, address="10.0.0.9:8470", state="alias")
    sizes = [model, replace(model, name="tiny@32x64"), replace(model, name="tiny@64x64")]
    monkeypatch.setattr(coordinator, "device_statuses", lambda: [device, alias])
    monkeypatch.setattr(coordinator, "statuses", lambda: sizes)
    lines = [
        line.rpartition(" ")[0]
        for line in (await http.get("/metrics")).text.splitlines()
        if not line.startswith("#")
    ]
    assert len(lines) == len(set(lines))
    assert 'imbrex_plan_version{model="tiny"}' in lines
    assert not any("@" in line for line in lines)
