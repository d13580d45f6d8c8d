"""Prometheus' rules and the dashboard: they parse, fire when they should, and ask only for what is
there.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
import yaml

from tests.serving.in_place import InPlace

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"][0]["rules"]


def promtool(*arguments: object) -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: make promtool")
    ran = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_prometheus_takes_the_rules() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", FOLDER / "rules.yml")


def test_the_rules_fire_when_they_should() -> None:
    assert "SUCCESS" in promtool("test", "rules", FOLDER / "rules.test.yml")


def test_every_alert_says_what_to_do_and_is_documented() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    for rule in RULES:
        assert {"summary", "cure"} <= set(rule["annotations"]), rule["alert"]
        assert f"`{rule['alert']}`" in page


async def test_the_rules_ask_for_metrics_that_are_served(
    http: httpx.AsyncClient, coordinator: InPlace
) -> None:
    served = set(re.findall(r"^# TYPE (\S+)", (await http.get("/metrics")).text, re.M))
    asked = {name for rule in RULES for name in re.findall(r"\bimbrex_\w+", rule["expr"])}
    assert len(asked) > 6
    assert {re.sub(r"_bucket$", "", name) for name in asked} <= served


# ---------------------------------------------------------------- the dashboard

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "imbrex.json").read_text())
# What Grafana puts in place of its variables.
VARIABLES = {"$__rate_interval": "1m", "$__interval": "15s", "$cluster": ".*", "$model": "a|b"}


def asked() -> list[str]:
    """What the dashboard asks Prometheus, as Grafana would send it."""
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            selector = re.fullmatch(r"label_values\((.+), \w+\)", variable["query"]["query"])
            assert selector, variable["name"]
            found.append(selector[1])
    for name, value in VARIABLES.items():
        found = [each.replace(name, value) for each in found]
    return found


def recorded(expressions: list[str], file: Path) -> Path:
    rules = [{"record": f"asked:{k}", "expr": each} for k, each in enumerate(expressions)]
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    return file


def test_prometheus_takes_what_the_dashboard_asks(tmp_path: Path) -> None:
    expressions = asked()
    assert len(expressions) > 20
    assert not [each for each in expressions if "$" in each]
    told = promtool("check", "rules", recorded(expressions, tmp_path / "asked.yml"))
    assert f"{len(expressions)} rules found" in told


@pytest.mark.parametrize(
    "wrong",
    [
        'sum(rate(imbrex_requests_total{cluster=~".*"})))',
        "rate(imbrex_requests_total)",
        'imbrex_queue_depth{cluster=~"$cluster}',
        "histogram_quantile(sum by (le) (rate(imbrex_request_seconds_bucket[1m])))",
    ],
)
def test_query_that_prometheus_refuses_is_noticed(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="parse"):
        promtool("check", "rules", recorded([*asked(), wrong], tmp_path / "asked.yml"))
