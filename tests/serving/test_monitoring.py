"""Prometheus' rules: they parse, fire when they should, and ask only for what is there."""

from __future__ import annotations

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
