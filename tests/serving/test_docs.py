"""What docs/serving.md names exists: routes, flags, metrics, files."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

from tests.cli.run_cli import imbrex

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "serving.md").read_text()


async def test_routes_named_on_the_page_exist(http: httpx.AsyncClient) -> None:
    paths = set(re.findall(r"`(?:GET |POST )?(/[a-z][\w/.{}-]*)`", TEXT))
    assert len(paths) > 6
    for path in paths:
        filled = path.replace("{model}", "tiny")
        found = await http.post(filled), await http.get(filled)
        assert any(each.status_code not in (404, 405) for each in found), path


async def test_metrics_named_on_the_page_exist(http: httpx.AsyncClient) -> None:
    declared = re.findall(r"^# TYPE (\S+)", (await http.get("/metrics")).text, re.M)
    named = set(re.findall(r"imbrex_\w+", TEXT))
    assert len(named) > 15
    assert {each.removesuffix("_total") for each in named} <= {
        each.removesuffix("_total") for each in declared
    }


def test_flags_and_files() -> None:
    help_text = imbrex("coordinator", "--help").out
    for flag in set(re.findall(r"imbrex coordinator[^`\n]*?(--[a-z-]+)", TEXT)):
        assert flag in help_text, flag
    for link in re.findall(r"\]\(([\w./-]+)\)", TEXT):
        assert (ROOT / "docs" / link).exists(), link
