"""The playbook on machines that really boot: `make test-deploy`.

One coordinator and three workers, Debian 12 and 13, from bare machines to none again: every test
goes on where the one before it ended. Takes root, debootstrap and systemd-nspawn, a few gigabytes
and some forty minutes.
"""

from __future__ import annotations

import contextlib
import json
import shutil

import pytest

from coordinator.serving import daemon as coordinator
from models.digits import MODEL
from models.digits.examples import examples
from tests.deploy.home import Home, changes, home_of, needs_machines
from tests.deploy.machines import wait_for
from tests.deploy.packages import changed
from tests.deploy.seen import (
    announced,
    assert_private,
    exposure,
    leftovers,
    pause_s,
    resident,
    restarted,
    runs_from,
    up_s,
)
from worker import daemon as worker

SUITES = {"living-room": "trixie", "kitchen": "bookworm", "hall": "trixie", "office": "bookworm"}
EVERYBODY = set(SUITES) - {"living-room"} | {"host"}
UNCHANGED = dict.fromkeys(SUITES, 0)
SHEET = examples()[0]
DOOR = {"name": "door", "source": "/srv/pictures", "options": "--model digits --per-second 2"}
# One device, or the coordinator, on which a new version does not come up.
BROKEN = {
    device: (
        f"{daemon.__name__.replace('.', '/')}.py",
        "import asyncio\n",
        f'import asyncio, platform\nif platform.node() == "{device}":\n    raise SystemExit(70)\n',
    )
    for device, daemon in (("kitchen", worker), ("living-room", coordinator))
}

pytestmark = needs_machines


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with home_of(tmp_path_factory.mktemp("home"), SUITES, "coordinator,watch,mqtt") as made:
        yield made


def used(home: Home, names: set[str]) -> None:
    wait_for(lambda: home.ready() == names, f"{names} are used")


def watches(home: Home) -> None:
    """A picture is answered that comes into the folder of the watch, which may have just begun."""
    before = home.answered()
    for _ in range(20):
        folder = home.machines["living-room"].root / "srv/pictures"
        shutil.copy(SHEET.path, folder / f"{len(list(folder.iterdir()))}.png")
        with contextlib.suppress(AssertionError):
            wait_for(lambda: home.answered() > before, "the picture is answered", within_s=10)
            return
    pytest.fail(home.machines["living-room"].ssh("journalctl --no-pager -u imbrex-watch@door"))


def test_a_dry_run_on_bare_machines_changes_nothing(home) -> None:
    home.play("playbook.yml", "--check")
    for machine in home.machines.values():
        assert leftovers(machine) == ""


def test_machines_are_installed_and_a_second_run_finds_nothing_to_do(home) -> None:
    home.play("playbook.yml")
    assert changes(home.play("playbook.yml")) == UNCHANGED
    assert changes(home.play("playbook.yml", "--check")) == UNCHANGED


def test_devices_are_found_over_mdns_and_answer(home) -> None:
    assert announced(within_s=30) == EVERYBODY - {"host"}
    used(home, EVERYBODY)
    answer = home.ask("infer", SHEET.path, "--model", "digits")
    assert sorted(each["label"] for each in answer["predictions"]) == sorted(
        digit.label for digit in SHEET.truth
    )


def test_ten_minutes_later_they_are_small(home) -> None:
    """Room for other things on a device of 1 GB."""
    for name, machine in home.machines.items():
        wait_for(lambda on=machine: up_s(on) > 600, f"ten minutes on {name}", within_s=900)
        found = resident(machine)
        print(name, machine.suite, found)
        assert len(found) == (2 if name == "living-room" else 1)
        assert max(found.values()) < 300


def test_a_model_that_the_inventory_names_is_there_and_answers(home) -> None:
    """A model of this computer: `digits` with a sidecar that calls the digits by their names."""
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    sidecar = json.loads(MODEL.with_suffix(".json").read_text())
    (home.folder / "words.json").write_text(json.dumps(sidecar | {"labels": names}))
    shutil.copy(MODEL, home.folder / "words.onnx")
    home.set(imbrex_models=[str(home.folder / "words.onnx")])
    found = changes(home.play("playbook.yml"))
    assert found["living-room"] > 0
    assert found | {"living-room": 0} == UNCHANGED
    used(home, EVERYBODY)
    answer = home.ask("infer", SHEET.path, "--model", "words")
    assert sorted(each["label"] for each in answer["predictions"]) == sorted(
        names[int(digit.label)] for digit in SHEET.truth
    )
    assert changes(home.play("playbook.yml")) == UNCHANGED


def test_watches_that_the_inventory_names_answer_what_they_see(home) -> None:
    room = home.machines["living-room"]
    room.ssh("mkdir /srv/pictures")
    home.set(coordinator_watches=[DOOR, DOOR | {"name": "scans"}])
    found = changes(home.play("playbook.yml"))
    assert found["living-room"] > 0
    assert found | {"living-room": 0} == UNCHANGED
    used(home, EVERYBODY)
    watches(home)
    assert changes(home.play("playbook.yml")) == UNCHANGED
    assert changes(home.play("playbook.yml", "--check")) == UNCHANGED
    print("exposure", exposure(room, "watch@door"))


def test_watch_that_is_not_named_any_more_ends_and_the_other_goes_on(home) -> None:
    room = home.machines["living-room"]
    since = room.ssh("systemctl show -P ActiveEnterTimestampMonotonic imbrex-watch@door")
    home.set(coordinator_watches=[DOOR])
    assert changes(home.play("playbook.yml"))["living-room"] > 0
    assert since == room.ssh("systemctl show -P ActiveEnterTimestampMonotonic imbrex-watch@door")
    assert room.ssh("ls /etc/imbrex/watch").split() == ["door.env"]
    units = room.ssh("systemctl list-units --all --plain --no-legend 'imbrex-watch@*'")
    assert [line.split()[0] for line in units.splitlines()] == ["imbrex-watch@door.service"]


def test_a_run_that_broke_off_before_a_watch_read_its_settings_is_completed(home) -> None:
    room = home.machines["living-room"]
    show = "systemctl show -P ActiveEnterTimestampMonotonic imbrex-watch@door"
    since = room.ssh(show)
    room.ssh("touch /etc/imbrex/watch/door.env")
    assert changes(home.play("playbook.yml")) == UNCHANGED | {"living-room": 1}
    assert since != room.ssh(show)
    assert changes(home.play("playbook.yml")) == UNCHANGED


def test_a_watch_goes_on_after_it_or_the_coordinator_was_killed(home) -> None:
    room = home.machines["living-room"]
    room.ssh("systemctl kill --kill-whom=main --signal=KILL imbrex-watch@door")
    wait_for(lambda: restarted(room, 1, "watch@door"), "the watch runs again")
    watches(home)
    room.ssh("systemctl kill --kill-whom=main --signal=KILL imbrex-coordinator")
    wait_for(lambda: restarted(room, 1, "coordinator"), "the coordinator serves again")
    used(home, EVERYBODY)
    watches(home)


def test_worker_that_dies_or_hangs_is_started_again_and_again(home) -> None:
    """After pauses that grow, where systemd can: on Debian 13."""
    for name in ("hall", "kitchen"):
        machine = home.machines[name]
        pauses = []
        for times, how in enumerate(("KILL", "STOP", "KILL"), start=1):
            machine.ssh(f"systemctl kill --kill-whom=main --signal={how} imbrex-worker.service")
            wait_for(lambda on=machine, n=times: restarted(on, n), f"{name} serves again")
            pauses.append(pause_s(machine))
        print(name, machine.suite, "pauses", pauses)
        assert (pauses[0] < pauses[1] < pauses[2]) == (SUITES[name] == "trixie")
    used(home, EVERYBODY)


def test_rebooted_machine_comes_back_by_itself(home) -> None:
    hall = home.machines["hall"]
    hall.ssh("systemctl", "reboot", check=False)
    wait_for(lambda: hall.boots == 2, "the hall has gone down")
    used(home, EVERYBODY)


def test_an_upgrade_that_does_not_come_up_goes_back_and_stops_there(home) -> None:
    before = home.versions()
    file, *replaced = BROKEN["living-room"]
    broken = changed(home.folder / "bad", "98.0", {file: replaced})
    said = home.fail("playbook.yml", "-e", f"imbrex_wheel={broken}")
    assert "imbrex coordinator 98.0" in said
    assert f"{before['living-room']}" in said
    assert "runs again" in said
    assert home.versions() == before
    used(home, EVERYBODY)


def test_all_are_upgraded_and_workers_one_after_the_other(home) -> None:
    """With API keys, too: the playbook makes its own, and ends it."""
    before = {each["id"] for each in home.ask("status")["devices"]}
    room = home.machines["living-room"]
    state = "--state-dir /var/lib/imbrex/coordinator"
    made = f"runuser -u imbrex -- /opt/imbrex/venv/bin/imbrex cluster key me --role admin {state}"
    home.key = room.ssh(made).strip()
    wheel = changed(home.folder / "good", "99.0")
    home.settings["imbrex_wheel"] = str(wheel)
    home.play("playbook.yml", "--limit", "living-room")
    used(home, EVERYBODY)
    with home.asked_all_the_time(SHEET.path) as failures:
        home.play("playbook.yml", "--limit", "workers")
    assert failures == []
    used(home, EVERYBODY)
    assert home.versions() == dict.fromkeys(SUITES, "99.0")
    assert {each["id"] for each in home.ask("status")["devices"]} == before
    keys = room.ssh(f"/opt/imbrex/venv/bin/imbrex cluster keys --json {state}")
    assert [each["name"] for each in json.loads(keys)["keys"]] == ["me"]
    assert changes(home.play("playbook.yml")) == UNCHANGED


def test_a_watch_has_the_new_version_and_the_key_that_it_is_given(home) -> None:
    room = home.machines["living-room"]
    assert runs_from(room, "imbrex-watch@door").startswith("99.0-")
    home.set(coordinator_watches=[DOOR | {"environment": {"IMBREX_API_KEY": home.key}}])
    assert changes(home.play("playbook.yml"))["living-room"] > 0
    watches(home)
    assert changes(home.play("playbook.yml")) == UNCHANGED


def test_failed_update_of_one_worker_leaves_the_rest_as_it_was(home) -> None:
    file, *replaced = BROKEN["kitchen"]
    broken = changed(home.folder / "worse", "99.1", {file: replaced})
    said = home.fail("playbook.yml", "-e", f"imbrex_wheel={broken}")
    assert "imbrex worker 99.1" in said
    assert home.versions() == dict.fromkeys(SUITES, "99.0") | {"living-room": "99.1"}
    used(home, EVERYBODY)
    home.play("playbook.yml")
    assert home.versions() == dict.fromkeys(SUITES, "99.0")
    used(home, EVERYBODY)


def test_settings_that_a_daemon_refuses_go_back_too(home) -> None:
    said = home.fail("playbook.yml", "--limit", "hall", "-e", "worker_pace=7")
    assert "pace" in said
    used(home, EVERYBODY)
    assert "pace = 1.0" in home.machines["hall"].ssh("cat /etc/imbrex/worker.toml")


def test_newer_python_gets_an_environment_of_its_own(home) -> None:
    """The office's Debian 12 becomes a Debian 13, with what imbrex has there."""
    office = home.machines["office"]
    assert office.ssh("ls /opt/imbrex/venvs").strip().endswith("-py3.11-ncnn")
    office.upgrade("trixie")
    wait_for(office.is_up, "the office is up")
    home.play("playbook.yml", "--limit", "office")
    assert office.ssh("ls /opt/imbrex/venvs").strip().endswith("-py3.13-ncnn")
    used(home, EVERYBODY)
    assert changes(home.play("playbook.yml")) == UNCHANGED


def test_secrets_are_private_and_daemons_are_little_exposed(home) -> None:
    for name, machine in home.machines.items():
        assert_private(machine)
        daemon = "coordinator" if name == "living-room" else "worker"
        found = exposure(machine, daemon)
        print(name, machine.suite, daemon, "exposure", found)
        assert found <= 2.5


def test_removed_device_leaves_nothing_behind_and_neither_do_all(home) -> None:
    home.play("remove.yml", "--limit", "office")
    wait_for(lambda: "office" not in home.ready(), "the office is gone")
    listed = ("/opt/imbrex/venv/bin/imbrex", "cluster", "list", "--json", "--state-dir")
    state = "/var/lib/imbrex/coordinator"
    members = json.loads(home.machines["living-room"].ssh(*listed, state))["devices"]
    assert {each["name"] for each in members} == EVERYBODY - {"office"}
    home.play("remove.yml")
    for machine in home.machines.values():
        assert leftovers(machine) == ""
        assert machine.ssh("id imbrex 2>&1 || true").endswith("no such user\n")
