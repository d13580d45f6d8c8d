"""The playbook on machines that really boot: `make test-deploy`.

One coordinator and three workers, Debian 12 and 13, from bare machines to none again: every test
goes on where the one before it ended. Takes root, debootstrap and systemd-nspawn, a few gigabytes
and some twenty minutes.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from models.digits.examples import examples
from tests.deploy.home import PLAYBOOK, Home, described
from tests.deploy.machines import OURS, Machine, booted, inside, network, wait_for, why_not
from tests.deploy.packages import ROOT, build, changed, run, wheels

SUITES = {"living-room": "trixie", "kitchen": "bookworm", "hall": "trixie", "office": "bookworm"}
EVERYBODY = set(SUITES) - {"living-room"} | {"host"}
UNCHANGED = dict.fromkeys(SUITES, 0)
SHEET = examples()[0]
# One device, or the coordinator, on which a new version does not come up.
BROKEN = {
    device: (
        f"{room}/daemon.py",
        "import asyncio\n",
        f'import asyncio, platform\nif platform.node() == "{device}":\n    raise SystemExit(70)\n',
    )
    for device, room in (("kitchen", "worker"), ("living-room", "coordinator"))
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PLAYBOOK, reason="run by `make test-deploy` only"),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    wheel = build(ROOT, folder / "dist")
    house = wheels(folder / "wheels", [f"{wheel}[coordinator]"], ["3.11", "3.13"])
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key")
    machines = {
        name: Machine(name, suite, f"10.77.0.{10 + n}", folder / name, folder / "key", house)
        for n, (name, suite) in enumerate(SUITES.items())
    }
    inventory = folder / "inventory.json"
    inventory.write_text(json.dumps(described(machines, wheel, folder / "key")))
    with network(), booted(list(machines.values())):
        yield Home(machines, inventory, folder)


def changes(counts: dict[str, dict[str, int]]) -> dict[str, int]:
    return {host: each["changed"] for host, each in counts.items()}


def used(home: Home, names: set[str]) -> None:
    wait_for(lambda: home.ready() == names, f"{names} are used")


def test_a_dry_run_on_bare_machines_changes_nothing(home) -> None:
    home.play("playbook.yml", "--check")
    for machine in home.machines.values():
        assert leftovers(machine) == ""


def test_they_are_installed_and_a_second_run_finds_nothing_to_do(home) -> None:
    home.play("playbook.yml")
    assert changes(home.play("playbook.yml")) == UNCHANGED
    assert changes(home.play("playbook.yml", "--check")) == UNCHANGED


def test_they_are_found_over_mdns_and_answer(home) -> None:
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
        print(name, SUITES[name], found)
        assert len(found) == (2 if name == "living-room" else 1)
        assert max(found.values()) < 300


def test_one_that_reboots_comes_back_by_itself(home) -> None:
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
    with asked_all_the_time(home) as failures:
        home.play("playbook.yml", "--limit", "workers")
    assert failures == []
    used(home, EVERYBODY)
    assert home.versions() == dict.fromkeys(SUITES, "99.0")
    assert {each["id"] for each in home.ask("status")["devices"]} == before
    keys = room.ssh(f"/opt/imbrex/venv/bin/imbrex cluster keys --json {state}")
    assert [each["name"] for each in json.loads(keys)["keys"]] == ["me"]
    assert changes(home.play("playbook.yml")) == UNCHANGED


def test_the_rest_stays_as_it_is_where_one_worker_goes_back(home) -> None:
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


def test_another_python_gets_another_environment(home) -> None:
    """The office's Debian 12 becomes a Debian 13, with what imbrex has there."""
    office = home.machines["office"]
    assert office.ssh("ls /opt/imbrex/venvs").strip().endswith("-py3.11")
    office.upgrade("trixie")
    wait_for(office.is_up, "the office is up")
    home.play("playbook.yml", "--limit", "office")
    assert office.ssh("ls /opt/imbrex/venvs").strip().endswith("-py3.13")
    used(home, EVERYBODY)
    assert changes(home.play("playbook.yml")) == UNCHANGED


def test_nothing_secret_lies_open_and_little_is_exposed(home) -> None:
    for name, machine in home.machines.items():
        assert_private(machine)
        for daemon in ("worker", "coordinator") if name == "living-room" else ("worker",):
            if name == "living-room" and daemon == "worker":
                continue
            said = machine.ssh(f"systemd-analyze security --no-pager imbrex-{daemon}.service")
            exposure = float(re.findall(r"Overall exposure level.*: ([0-9.]+)", said)[0])
            print(name, SUITES[name], daemon, "exposure", exposure)
            assert exposure <= 2.5


def test_one_leaves_then_all_and_nothing_is_left(home) -> None:
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


def up_s(machine: Machine) -> float:
    """How long its oldest daemon has run, in seconds."""
    return max(map(float, machine.ssh("ps -u imbrex -o etimes=").split()), default=0.0)


def resident(machine: Machine) -> dict[str, float]:
    """Megabytes that each of its daemons holds in memory, shared libraries with it."""
    lines = [line.split() for line in machine.ssh("ps -u imbrex -o rss=,args=").splitlines()]
    return {
        daemon: round(int(size) / 1024, 1)
        for size, *command in lines
        for daemon in ("worker", "coordinator")
        if daemon in command
    }


def leftovers(machine: Machine) -> str:
    listed = "ls -d /opt/imbrex /etc/imbrex /var/lib/imbrex /etc/systemd/system/imbrex* 2>&1"
    return machine.ssh(f"{listed} | grep -v 'No such file' || true")


def assert_private(machine: Machine) -> None:
    """No key is for others to read, no token or key in a command line or in the journal."""
    assert machine.ssh("find /etc/imbrex /opt/imbrex/worked -type f -perm /007") == ""
    assert machine.ssh("find /var/lib/imbrex/* -maxdepth 0 -perm /077") == ""
    assert machine.ssh("find /var/lib/imbrex -name '*.pem' -perm /077") == ""
    seen = machine.ssh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; journalctl --no-pager -o cat")
    assert "imbrex" in seen
    assert re.findall(r":8462/[0-9a-f]{64}/", seen) == []
    assert re.findall(r"imbrex_[\w-]{32}\b", seen) == []
    assert "PRIVATE KEY" not in seen


@contextlib.contextmanager
def asked_all_the_time(home: Home) -> Iterator[list[str]]:
    """Requests, one after the other, for as long as the context lasts; what went wrong."""
    failures: list[str] = []
    done = threading.Event()
    asked = 0

    def ask() -> None:
        nonlocal asked
        while not done.is_set():
            try:
                home.ask("infer", SHEET.path, "--model", "digits")
            except (AssertionError, subprocess.TimeoutExpired) as error:
                failures.append(str(error))
            asked += 1

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield failures
    finally:
        done.set()
        thread.join()
        print(f"{asked} requests meanwhile, {len(failures)} failed")


def announced(within_s: float) -> set[str]:
    """Names of the workers that say over multicast DNS that they are there."""
    listener = (
        "import sys, time\n"
        "from zeroconf import ServiceBrowser, Zeroconf\n"
        "found = set()\n"
        "def seen(zeroconf, service_type, name, state_change):\n"
        "    found.add(name.rpartition('._imbrex')[0].rpartition('-')[0])\n"
        f"zeroconf = Zeroconf(interfaces=['{OURS}'])\n"
        "ServiceBrowser(zeroconf, '_imbrex._tcp.local.', handlers=[seen])\n"
        f"deadline = time.monotonic() + {within_s}\n"
        "while len(found) < 3 and time.monotonic() < deadline:\n"
        "    time.sleep(0.2)\n"
        "print(*found)\n"
    )
    return set(run(*inside(sys.executable, "-c", listener)).split())
