"""The site is built without a warning, and its reference says what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.planning.cluster_file import DeviceEntry, Host, NetworkTable, parse_cluster
from imbrex.described import load_cluster
from tests.docs.commands import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_reference_pages_are_made_from_the_code(site: Path) -> None:
    commands = (site / "reference" / "commands" / "index.html").read_text()
    for name in ("imbrex demo", "imbrex models pull", "imbrex cluster invite", "imbrex watch"):
        assert f">{name}<" in commands, name
    settings = (site / "reference" / "settings" / "index.html").read_text()
    for name in ("model_repository", "memory_mb", "8470"):
        assert name in settings, name
    playbook = (site / "reference" / "playbook" / "index.html").read_text()
    for name in ("imbrex_wheel", "worker_pace", "coordinator_watches", "store_address"):
        assert f"<code>{name}</code>" in playbook, name
    results = (site / "reference" / "results" / "index.html").read_text()
    assert "<code>never_slower.json</code>" in results
    routes = (site / "reference" / "http" / "index.html").read_text()
    assert "/v1/models/{model}/infer" in routes


def test_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("index.html"):
        text = page.read_text()
        for source in ('src="http', 'rel="stylesheet" href="http', "fonts.googleapis"):
            assert source not in text, (page, source)


def test_the_page_on_cluster_files_names_keys_that_the_parser_knows(site: Path) -> None:
    text = (ROOT / "docs" / "cluster-files.md").read_text()
    models = (DeviceEntry, Host, NetworkTable)
    known = {name for model in models for name in model.model_fields}
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert len(named) > 5
    assert named <= known
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert len(parse_cluster(example).devices) == 5
    reference = (site / "reference" / "cluster-keys" / "index.html").read_text()
    assert {name for name in known if f"<code>{name}</code>" not in reference} == set()


@pytest.mark.parametrize("name", ["four-pi3", "four-pi4", "four-pi5"])
def test_the_example_clusters_are_four_devices(name: str) -> None:
    cluster = load_cluster(ROOT / "docs" / "clusters" / f"{name}.toml")
    assert len(cluster.devices) == 4
    assert cluster.devices[0].host


def test_every_page_is_in_the_menu(site: Path) -> None:
    menu = (site / "index.html").read_text()
    for page in ROOT.glob("docs/*.md"):
        name = "." if page.stem == "index" else f"{page.stem}/"
        assert f'href="{name}"' in menu, page
