"""Two coordinators, a store and one address by the playbook, on machines that really boot: `make
test-deploy`.

Three machines, Debian 12 and 13: every test goes on where the one before it ended.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from models.digits.examples import examples
from tests.deploy.home import Home, Inventory, changes, described, home_of, needs_machines
from tests.deploy.machines import Machine, inside, wait_for
from tests.deploy.packages import ROOT, changed
from tests.deploy.seen import assert_private, leftovers, restarted

SUITES = {"pi-1": "trixie", "pi-2": "bookworm", "pi-3": "trixie"}
COORDINATORS, COMPUTING = ("pi-1", "pi-2"), ("pi-3",)
ENGINE = "openvino"
UNCHANGED = dict.fromkeys(SUITES, 0)
ADDRESS, PORT = "10.77.0.200", 8450
PACKAGES = ("nats-server", "haproxy", "keepalived", "curl")
SHEET = examples()[0]
RIGHT = sorted(digit.label for digit in SHEET.truth)
STATE = "/var/lib/imbrex/coordinator"
IMBREX = "runuser -u imbrex -- /opt/imbrex/venv/bin/imbrex"
# One of our clients, which asks one request after another: for each a line of when it began and
# ended, and what was wrong.
ASKING = """
import json, sys, time
from pathlib import Path
from imbrex import Client
from protos.errors import ImbrexError
url, picture = sys.argv[1:]
with Client(url) as client:
    while True:
        began, wrong = time.monotonic(), ""
        try:
            found = client.infer("digits", Path(picture)).predictions
            told = sorted(each.label for each in found)
        except ImbrexError as error:
            told, wrong = [], str(error)
        print(json.dumps([began, time.monotonic(), told, wrong]), flush=True)
        time.sleep(0.05)
"""

pytestmark = needs_machines


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    with home_of(folder, SUITES, f"coordinator,{ENGINE}", PACKAGES, of_a_pair) as made:
        yield made


def of_a_pair(machines: dict[str, Machine], wheel: Path, key: Path) -> Inventory:
    """The inventory: `described`, with a second coordinator, a store, and another engine on one."""
    found = described(machines, wheel, key)
    groups, everywhere = found["all"]["children"], found["all"]["vars"]
    coordinators, workers = groups["coordinator"]["hosts"], groups["workers"]["hosts"]
    coordinators["pi-2"] = workers.pop("pi-2")
    workers["pi-3"] |= {"imbrex_engines": [ENGINE], "worker_engine": ENGINE}
    for name in COORDINATORS:  # they have no default route to be known by
        coordinators[name]["coordinator_host_worker"] = machines[name].address
    del everywhere["coordinator_host_worker"]
    groups["store"] = {"hosts": dict.fromkeys(machines)}
    everywhere["shared_address"] = ADDRESS
    return found


def before_that(inventory: Inventory) -> Inventory:
    """The same home with one coordinator."""
    found = copy.deepcopy(inventory)
    groups = found["all"]["children"]
    del groups["store"], groups["coordinator"]["hosts"]["pi-2"]
    del found["all"]["vars"]["shared_address"]
    return found


def imbrex(home: Home, name: str, *arguments: str) -> Any:
    """What a command about the cluster prints on a coordinator, as JSON."""
    words = " ".join(arguments)
    return json.loads(
        home.machines[name].ssh(f"{IMBREX} cluster {words} --json --state-dir {STATE}")
    )


def invited(home: Home) -> bool:
    """Whether a change is taken."""
    with contextlib.suppress(AssertionError):
        return bool(imbrex(home, "pi-1", "invite", "--address 10.77.0.10"))
    return False


def members(home: Home, name: str, kind: str = "devices") -> set[str]:
    return {each["name"] for each in imbrex(home, name, "list")[kind]}


def used(home: Home, name: str) -> set[str]:
    """The devices that a coordinator uses; none while it does not answer."""
    with contextlib.suppress(AssertionError):
        found = home.ask("status", url=f"http://{home.machines[name].address}:8460")
        return {each["name"] for each in found["devices"] if each["state"] == "ready"}
    return set()


def whole(home: Home) -> None:
    """Both coordinators have their own device and the worker, and one has the address."""
    for name in COORDINATORS:
        wait_for(lambda of=name: used(home, of) == {"host", *COMPUTING}, f"{name} is whole")
    wait_for(lambda: len(holders(home)) == 1, "one has the address")


def holders(home: Home) -> list[str]:
    """The machines with the shared address."""
    command = "ip -4 -o address show host0"
    return [name for name in COORDINATORS if f" {ADDRESS}/" in home.machines[name].ssh(command)]


@dataclass
class Asked:
    """What the client has been answered so far."""

    file: Path

    def lines(self) -> list[tuple[float, float, list[str], str]]:
        return [tuple(json.loads(line)) for line in self.file.read_text().splitlines()]

    def good(self, since_s: float = 0.0) -> list[float]:
        """When right answers came to requests that began after this."""
        return [end for began, end, told, _ in self.lines() if began >= since_s and told == RIGHT]

    def bad(self) -> list[str]:
        return [wrong or str(told) for *_, told, wrong in self.lines() if told != RIGHT]

    def slowest_s(self) -> float:
        return max(end - began for began, end, *_ in self.lines())


@contextlib.contextmanager
def asking(home: Home) -> Iterator[Asked]:
    """Requests at the shared address, for as long as the context lasts."""
    asked = Asked(home.folder / f"asked-{time.monotonic_ns()}")
    client = ("env", f"IMBREX_API_KEY={home.key}", sys.executable, "-c", ASKING)
    command = inside(*client, f"http://{ADDRESS}:{PORT}", SHEET.path)
    with asked.file.open("wb") as answers:
        running = subprocess.Popen(command, cwd=ROOT, stdout=answers)
        try:
            wait_for(lambda: len(asked.good()) > 5, "requests are answered")
            yield asked
        finally:
            running.terminate()
            running.wait(30)
    print(f"{len(asked.good())} answers, slowest {asked.slowest_s():.1f} s")


def goes_on(asked: Asked) -> None:
    """Some more are answered that have not begun yet."""
    now = time.monotonic()
    wait_for(lambda: len(asked.good(since_s=now)) > 20, "requests are answered")


def test_a_dry_run_on_bare_machines_changes_nothing(home) -> None:
    home.play("playbook.yml", "--check")
    for machine in home.machines.values():
        assert leftovers(machine) == ""
        assert machine.ssh("ls /usr/sbin/nats-server /usr/sbin/haproxy 2>/dev/null || true") == ""


def test_second_coordinator_is_added_and_a_second_run_finds_nothing_to_do(home) -> None:
    text = home.inventory.read_text()
    home.inventory.write_text(json.dumps(before_that(json.loads(text))))
    home.play("playbook.yml")
    assert changes(home.play("playbook.yml")) == {"pi-1": 0, "pi-3": 0}
    assert leftovers(home.machines["pi-2"]) == ""
    known = {each["id"] for each in imbrex(home, "pi-1", "list")["devices"]}
    home.inventory.write_text(text)
    home.play("playbook.yml")
    assert changes(home.play("playbook.yml")) == UNCHANGED
    assert changes(home.play("playbook.yml", "--check")) == UNCHANGED
    assert known < {each["id"] for each in imbrex(home, "pi-2", "list")["devices"]}
    whole(home)


def test_coordinators_know_the_same_cluster_which_three_devices_keep(home) -> None:
    for name in COORDINATORS:
        assert members(home, name) == {"host", *COMPUTING}
        assert members(home, name, "coordinators") == set(COORDINATORS)
        assert imbrex(home, name, "authority")["fingerprint"]
    for machine in home.machines.values():
        health = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8222%s').read().decode())"
        told = machine.ssh(f'python3 -c "{health % "/jsz?streams=1&config=1"}"')
        streams = json.loads(told)["account_details"][0]["stream_detail"]
        (state,) = [each["config"] for each in streams if each["name"] == "KV_imbrex"]
        assert state["num_replicas"] == 3
        assert machine.ssh("stat -c %U:%a /var/lib/imbrex/store").strip() == "nats:700"


def test_requests_at_the_shared_address_are_answered(home) -> None:
    answer = home.ask("infer", SHEET.path, "--model", "digits", url=f"http://{ADDRESS}:{PORT}")
    assert sorted(each["label"] for each in answer["predictions"]) == RIGHT
    (holder,) = holders(home)
    assert holder in COORDINATORS


def test_a_device_computes_with_the_engine_that_the_inventory_names(home) -> None:
    found = home.ask("status", url=f"http://{ADDRESS}:{PORT}")["devices"]
    engines = {each["name"]: each["facts"]["engine"] for each in found}
    # The inventory names none for the coordinator's own: it has the playbook's, and measures them.
    assert engines.pop("host") in {"onnxruntime", "ncnn"}
    assert engines == dict.fromkeys(COMPUTING, ENGINE)


def test_device_that_joins_or_leaves_at_one_coordinator_does_so_at_the_other(home) -> None:
    token = imbrex(home, "pi-2", "invite", "--address 10.77.0.11")["token"]
    join = "worker --join - --join-only --state-dir /tmp/guest --name guest --no-mdns"
    pi = home.machines["pi-3"]
    pi.ssh(f"install -d -o imbrex /tmp/guest && echo {token} | {IMBREX} {join}")
    for name in COORDINATORS:
        wait_for(lambda of=name: "guest" in members(home, of), "it is a member", within_s=30)
    imbrex(home, "pi-2", "remove", "guest")
    for name in COORDINATORS:
        wait_for(lambda of=name: "guest" not in members(home, of), "it is none", within_s=30)
    pi.ssh("rm -r /tmp/guest")


def test_a_coordinator_that_is_killed_is_not_missed(home) -> None:
    with asking(home) as asked:
        for name in COORDINATORS:
            machine = home.machines[name]
            machine.ssh("systemctl kill --kill-whom=main --signal=KILL imbrex-coordinator")
            goes_on(asked)
            wait_for(lambda on=machine: restarted(on, 1, "coordinator"), f"{name} serves again")
            whole(home)
    assert asked.bad() == []


def test_a_server_of_the_store_that_is_killed_starts_again(home) -> None:
    machine = home.machines["pi-3"]
    with asking(home) as asked:
        machine.ssh("systemctl kill --kill-whom=main --signal=KILL nats-server")
        # While the others elect a leader, changes are refused.
        wait_for(lambda: invited(home), "changes are taken", within_s=60)
        show = "systemctl show -P ActiveState -P NRestarts nats-server"
        wait_for(lambda: set(machine.ssh(show).split()) == {"active", "1"}, "it runs again")
        goes_on(asked)
    assert asked.bad() == []


def test_a_machine_that_is_cut_off_with_the_address_is_replaced(home) -> None:
    with asking(home) as asked:
        (holder,) = holders(home)
        machine = home.machines[holder]
        machine.cut()
        at = time.monotonic()
        try:
            # What had left the machine before arrives within a tenth of a second.
            wait_for(lambda: any(end > at + 0.1 for end in asked.good()), "it is answered again")
            again = min(end for end in asked.good() if end > at + 0.1)
            print(f"{holder} cut off: answered again after {again - at:.1f} s")
            goes_on(asked)
        finally:
            machine.mend()
        whole(home)
        goes_on(asked)
        assert holders(home) != [holder]
    assert asked.bad() == []


def test_an_inventory_from_before_is_refused(home) -> None:
    text = home.inventory.read_text()
    home.inventory.write_text(json.dumps(before_that(json.loads(text))))
    try:
        said = home.fail("playbook.yml", "--limit", "pi-1")
    finally:
        home.inventory.write_text(text)
    assert "Use the inventory that the cluster was installed with" in " ".join(said.split())
    whole(home)


def test_all_are_upgraded_one_after_the_other_and_no_request_is_lost(home) -> None:
    """With API keys, too: the playbook makes its own, and ends it."""
    key = f"{IMBREX} cluster key me --role admin --state-dir {STATE}"
    home.key = home.machines["pi-2"].ssh(key).strip()
    wheel = changed(home.folder / "good", "99.0")
    home.settings["imbrex_wheel"] = str(wheel)
    with asking(home) as asked:
        home.play("playbook.yml")
        goes_on(asked)
    assert home.versions() == dict.fromkeys(SUITES, "99.0")
    assert changes(home.play("playbook.yml")) == UNCHANGED
    whole(home)
    assert asked.bad() == []
    for name in COORDINATORS:
        assert [each["name"] for each in imbrex(home, name, "keys")["keys"]] == ["me"]


def test_a_run_that_broke_off_before_daemons_read_their_settings_is_completed(home) -> None:
    machine = home.machines["pi-2"]
    show = "systemctl show -P StateChangeTimestampMonotonic nats-server haproxy keepalived"
    before = machine.ssh(show).split()
    machine.ssh("touch /etc/nats-server/imbrex.conf /etc/haproxy/imbrex.cfg")
    with asking(home) as asked:
        assert changes(home.play("playbook.yml")) == UNCHANGED | {"pi-2": 2}
        goes_on(asked)
    after = machine.ssh(show).split()
    assert [old == new for old, new in zip(before, after, strict=True)] == [False, False, True]
    assert changes(home.play("playbook.yml")) == UNCHANGED
    assert asked.bad() == []


def test_secrets_are_private(home) -> None:
    password = home.machines["pi-1"].ssh(f"cat {STATE}/cluster/store/password").strip()
    assert re.fullmatch("[A-Za-z0-9]{32}", password)
    for machine in home.machines.values():
        assert_private(machine)
        assert machine.ssh("find /etc/nats-server/* -perm /077") == ""
        seen = machine.ssh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; journalctl --no-pager -o cat")
        assert password not in seen
        for unit in ("nats-server", "haproxy"):
            if machine.ssh(f"systemctl is-active {unit}", check=False).strip() == "active":
                user = machine.ssh(f"systemctl show -P User {unit}").strip()
                assert user == unit.split("-")[0]


def test_removed_coordinator_leaves_nothing_behind_and_neither_do_all(home) -> None:
    home.play("remove.yml", "--limit", "pi-2")
    assert members(home, "pi-1", "coordinators") == {"pi-1"}
    home.play("remove.yml")
    for machine in home.machines.values():
        assert leftovers(machine) == ""
        found = "ls -d /etc/*/imbrex* /etc/systemd/system/*/imbrex* 2>/dev/null || true"
        assert machine.ssh(found) == ""
        assert machine.ssh("pgrep 'nats-server|haproxy|keepalived' || true") == ""
