"""What is installed at one coordinator is installed at the other: real processes of both, NATS, and
commands as people type them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.pair.processes import Member, Pair, pair
from coordinator.devices import children
from models.catalogue.installed import VARIABLE, Store
from tests import forked
from tests.cli.run_cli import Ran, imbrex_forked
from tests.serving.camera import save_camera
from tests.serving.in_place import picture
from tests.serving.processes import wait
from tests.several.store import needs_server

pytestmark = needs_server
MODEL = "digits"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two coordinators, whole again after each test."""
    folder = tmp_path_factory.mktemp("pair")
    with forked.instead(), pair(folder, MODEL, workers=1, pace=1.0, proxied=False) as found:
        yield found


@pytest.fixture
def whole(made: Pair) -> Iterator[Pair]:
    yield made
    for node in made.store.nodes:
        if node.process is None:
            node.start()
    for each in made.members:
        if each.child is None or each.child.process.poll() is not None:
            each.start()
    made.whole()
    one, two = (Store(each.models) for each in made.members)
    wait(lambda: one.installed().keys() == two.installed().keys())
    for name in one.installed():
        models(made.members[0], "remove", name)
    wait(lambda: not two.installed())


def models(member: Member, *arguments: object) -> Ran:
    """`imbrex models ...` as the user of this coordinator."""
    return imbrex_forked("models", *arguments, "--json", env={VARIABLE: str(member.models)})


def index(member: Member) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.post(
        f"{member.url}/v2/repository/index", timeout=30, trust_env=False
    ).json()
    return found


def rows(member: Member, name: str) -> list[dict[str, Any]]:
    return [each for each in index(member) if each["name"] == name]


def versions(member: Member, name: str) -> list[int]:
    found = Store(member.models).find(name)
    return list(found.versions) if found else []


def answer(member: Member, name: str) -> list[str]:
    """What a coordinator's model finds in a picture; plans differ in the last digits of scores."""
    asked = httpx.post(
        f"{member.url}/v1/models/{name}/infer",
        content=picture(),
        headers={"Content-Type": "image/png"},
        timeout=60,
        trust_env=False,
    )
    asked.raise_for_status()
    return sorted(each["label"] for each in asked.json()["predictions"])


def stop(member: Member) -> None:
    assert member.child is not None
    children.stop([member.child])


def start(member: Member, made: Pair) -> None:
    member.start()
    wait(lambda: member.is_ready(len(made.workers)))


def test_models_added_and_removed_at_one_are_so_at_the_other(whole: Pair, tmp_path: Path) -> None:
    one, two = whole.members
    camera = save_camera(tmp_path)
    assert models(one, "add", camera, "--default").json()["version"] == 1
    wait(lambda: versions(two, "camera") == [1])
    assert answer(two, "camera") == answer(one, "camera")
    wait(lambda: models(two, "default").json() == {"defaults": {"detection": "camera"}})

    assert models(two, "add", camera).json()["version"] == 2
    wait(lambda: versions(one, "camera") == [1, 2])
    assert models(two, "remove", "camera", "--version", "1").json()["removed"] == [1]
    wait(lambda: versions(one, "camera") == [2])
    (row,) = [e for e in models(one, "list").json()["models"] if e["name"] == "camera"]
    assert (row["versions"], row["missing"], row["default"]) == ([2], [], True)

    models(one, "remove", "camera")
    wait(lambda: not versions(two, "camera"))
    assert models(two, "default").json() == {"defaults": {}}
    assert models(two, "add", camera).json()["version"] == 3


def test_models_copied_by_hand_are_shared_as_versions_of_their_own(
    whole: Pair, tmp_path: Path
) -> None:
    one, two = whole.members
    for each in (one, two):
        stop(each)
    camera = save_camera(tmp_path)
    by_hand(one, camera, "yard")
    by_hand(two, camera, "yard")
    by_hand(one, camera, "gate", extra="first")
    by_hand(two, camera, "gate", extra="second")
    for each in (one, two):
        each.start()
    whole.whole()
    for each in (one, two):
        wait(lambda each=each: (versions(each, "yard"), versions(each, "gate")) == ([1], [1, 2]))
    told = [
        {(each.models / "gate" / str(n) / "note.txt").read_text() for n in (1, 2)}
        for each in (one, two)
    ]
    assert told == [{"first", "second"}] * 2


def by_hand(member: Member, file: Path, name: str, extra: str = "") -> None:
    folder = member.models / name / "1"
    folder.mkdir(parents=True)
    shutil.copy(file, folder / "model.onnx")
    shutil.copy(file.with_suffix(".json"), folder / "model.json")
    if extra:
        (folder / "note.txt").write_text(extra)


def test_coordinator_that_was_off_follows(whole: Pair, tmp_path: Path) -> None:
    one, two = whole.members
    camera = save_camera(tmp_path)
    for name in ("old", "kept"):
        models(one, "add", camera, "--name", name)
        wait(lambda name=name: versions(two, name))  # type: ignore[misc]
    stop(two)
    models(one, "remove", "old")
    models(one, "add", camera, "--name", "new")
    start(two, whole)
    names = ("old", "kept", "new")
    wait(lambda: [bool(versions(two, each)) for each in names] == [False, True, True])


def test_models_are_not_installed_or_removed_without_a_quorum(whole: Pair, tmp_path: Path) -> None:
    one, two = whole.members
    camera = save_camera(tmp_path)
    models(one, "add", camera, "--name", "before")
    wait(lambda: versions(two, "before") == [1])
    for node in whole.store.nodes[:2]:
        node.kill()
    for refused in (models(one, "add", camera, "--name", "later"), models(one, "remove", "before")):
        assert refused.code == 1
        assert "cannot be changed" in refused.out
        assert "More than half of its servers" in refused.out
    assert not (one.models / "later").exists()
    assert answer(two, "before") == answer(one, "before")
    for node in whole.store.nodes[:2]:
        node.start()
    wait(lambda: models(one, "add", camera, "--name", "later").code == 0)
    wait(lambda: versions(two, "later"))


def test_missing_model_is_named_and_comes_with_its_lender(whole: Pair, tmp_path: Path) -> None:
    one, two = whole.members
    stop(two)
    models(one, "add", save_camera(tmp_path), "--name", "lost")
    stop(one)
    start(two, whole)
    wait(lambda: any("no answer" in each["reason"] for each in rows(two, "lost")))
    (row,) = rows(two, "lost")
    assert (row["version"], row["state"]) == ("1", "UNAVAILABLE")
    refused = httpx.post(f"{two.url}/v2/models/lost/infer", json={}, trust_env=False, timeout=30)
    assert refused.status_code == 503
    assert "installed in the cluster, but not yet here" in refused.json()["error"]
    assert httpx.get(f"{two.url}/v2/models/lost/ready", trust_env=False).status_code == 400
    (listed,) = [e for e in models(two, "list").json()["models"] if e["name"] == "lost"]
    assert (listed["versions"], listed["missing"]) == ([], [1])
    found = httpx.get(f"{two.url}/v1/doctor", timeout=60, trust_env=False).json()["findings"]
    assert [each["code"] for each in found if each["code"] == "model_missing"]
    start(one, whole)
    wait(lambda: versions(two, "lost") == [1])
    assert not [e for e in rows(two, "lost") if e.get("state") == "UNAVAILABLE"]


def test_a_model_that_was_changed_here_stays_and_is_reported(whole: Pair, tmp_path: Path) -> None:
    one, two = whole.members
    models(one, "add", save_camera(tmp_path), "--name", "edited")
    wait(lambda: versions(two, "edited") == [1])
    sidecar = two.models / "edited" / "1" / "model.json"
    changed = json.loads(sidecar.read_text()) | {"description": "another one"}
    sidecar.write_text(json.dumps(changed))
    stop(two)
    start(two, whole)

    def told() -> bool:
        found = httpx.get(f"{two.url}/v1/doctor", timeout=60, trust_env=False).json()["findings"]
        return any(
            each["code"] == "models_differ" and "changed here" in each["cause"] for each in found
        )

    wait(told)
    assert json.loads(sidecar.read_text())["description"] == "another one"
    shutil.rmtree(two.models / "edited")
    wait(lambda: sidecar.exists() and "another one" not in sidecar.read_text())


def test_a_backup_holds_what_is_installed(whole: Pair, tmp_path: Path) -> None:
    one, two = whole.members
    models(one, "add", save_camera(tmp_path), "--name", "saved")
    wait(lambda: versions(two, "saved") == [1])
    state = ("--state-dir", one.state, "--json")
    names = imbrex_forked("cluster", "backup", tmp_path / "home.tgz", *state)
    assert "models.json" in names.json()["files"]
