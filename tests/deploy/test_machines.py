"""The playbook on machines that really boot: `make test-deploy`.

One coordinator and three workers, Debian 12 and 13: installed, found over mDNS, asked, rebooted,
upgraded, removed. Takes root, debootstrap and systemd-nspawn, a few gigabytes and several minutes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from models.digits.examples import examples
from tests.deploy.machines import (
    OURS,
    Machine,
    booted,
    inside,
    network,
    run,
    wait_for,
    wheels,
    why_not,
)

ROOT = Path(__file__).parents[2]
ANSIBLE = ROOT / "deploy" / "ansible"
PLAYBOOK = os.environ.get("IMBREX_DEPLOY_ANSIBLE", "")
IMAGES = Path(
    os.environ.get("IMBREX_DEPLOY_IMAGES") or platformdirs.user_cache_path("imbrex") / "machines"
)
SUITES = {"living-room": "trixie", "kitchen": "bookworm", "hall": "trixie", "office": "bookworm"}
URL = "http://10.77.0.10:8460"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PLAYBOOK, reason="run by `make test-deploy` only"),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]


@dataclass(frozen=True)
class Home:
    """The machines, and the playbook that looks after them."""

    machines: dict[str, Machine]
    inventory: Path
    folder: Path

    def play(self, name: str, *options: str) -> dict[str, dict[str, int]]:
        """Runs a playbook; per host, how many tasks were ok, changed, ...

        Raises:
            AssertionError: it failed.
        """
        command = (PLAYBOOK, "-i", str(self.inventory), str(ANSIBLE / name), *options)
        ran = subprocess.run(
            inside(*command),
            cwd=ANSIBLE,
            env=os.environ | {"ANSIBLE_HOST_KEY_CHECKING": "0", "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
        (self.folder / f"{name}.log").write_text(ran.stdout + ran.stderr)
        assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
        recap = re.findall(r"^(\S+)\s+: (ok=.*)$", ran.stdout, re.MULTILINE)
        return {
            host: {key: int(count) for key, count in re.findall(r"(\w+)=(\d+)", counts)}
            for host, counts in recap
        }

    def ask(self, *arguments: object) -> Any:
        """What `imbrex ... --json` answers in the machines' network."""
        command = (sys.executable, "-m", "imbrex", *map(str, arguments), "--url", URL, "--json")
        return json.loads(run(*inside(*command), timeout_s=120))

    def ready(self) -> set[str]:
        """Names of devices that the coordinator uses."""
        return {each["name"] for each in self.ask("status")["devices"] if each["state"] == "ready"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    wheel = build(ROOT, folder / "dist")
    house = wheels(wheel, folder / "wheels")
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key")
    machines = {
        name: Machine(name, suite, f"10.77.0.{10 + n}", folder / name, folder / "key", house)
        for n, (name, suite) in enumerate(SUITES.items())
    }
    inventory = folder / "inventory.json"
    inventory.write_text(json.dumps(described(machines, wheel, folder)))
    with network(), booted(list(machines.values()), IMAGES):
        yield Home(machines, inventory, folder)


def described(machines: dict[str, Machine], wheel: Path, folder: Path) -> dict[str, Any]:
    hosts = {name: {"ansible_host": each.address} for name, each in machines.items()}
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/srv/wheels"}
    return {
        "all": {
            "vars": {
                "ansible_user": "root",
                "ansible_python_interpreter": "/usr/bin/python3",
                "ansible_ssh_private_key_file": str(folder / "key"),
                "ansible_ssh_common_args": "-o UserKnownHostsFile=/dev/null",
                "imbrex_wheel": str(wheel),
                "imbrex_pip_environment": offline,
                "coordinator_profile": False,
            },
            "children": {
                "coordinator": {"hosts": {"living-room": hosts.pop("living-room")}},
                "workers": {"hosts": hosts},
            },
        }
    }


def build(source: Path, target: Path) -> Path:
    run(sys.executable, "-m", "build", "--wheel", "--outdir", target, source)
    (wheel,) = target.glob("*.whl")
    return wheel


def newer(folder: Path) -> Path:
    """A wheel of the same program with the next version."""
    files = run("git", "-C", ROOT, "ls-files").splitlines()
    for name in files:
        copy = folder / "source" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy, follow_symlinks=False)
    project = folder / "source" / "pyproject.toml"
    text, count = re.subn(r'(?m)^version = ".*"', 'version = "99.0"', project.read_text())
    assert count == 1
    project.write_text(text)
    return build(folder / "source", folder / "newer")


def test_a_home_from_bare_machines_to_none(home):
    everybody = set(SUITES) - {"living-room"} | {"host"}

    # Installed; a second run finds nothing to do.
    first = home.play("playbook.yml")
    assert set(first) == set(SUITES)
    second = home.play("playbook.yml")
    assert {host: counts["changed"] for host, counts in second.items()} == dict.fromkeys(SUITES, 0)

    # Found over mDNS by whoever listens, used by the coordinator, and it answers.
    assert announced(within_s=30) == everybody - {"host"}
    wait_for(lambda: home.ready() == everybody, "every device is used")
    sheet = examples()[0]
    answer = home.ask("infer", sheet.path, "--model", "digits")
    assert sorted(each["label"] for each in answer["predictions"]) == sorted(
        digit.label for digit in sheet.truth
    )

    # Only members get in, and nothing secret lies open.
    for machine in home.machines.values():
        assert_private(machine)

    # A device that reboots comes back by itself.
    hall = home.machines["hall"]
    hall.ssh("systemctl", "reboot", check=False)
    wait_for(lambda: "hall" not in home.ready(), "the hall is missed")
    wait_for(lambda: home.ready() == everybody, "the hall is back")
    assert hall.boots == 2

    # All are upgraded; nobody has to join again.
    before = {each["id"] for each in home.ask("status")["devices"]}
    home.play("playbook.yml", "-e", f"imbrex_wheel={newer(home.folder)}")
    wait_for(lambda: home.ready() == everybody, "every device is used again")
    assert {each["id"] for each in home.ask("status")["devices"]} == before
    for machine in home.machines.values():
        assert "99.0" in machine.ssh("/opt/imbrex/venv/bin/imbrex", "--version")

    # One leaves, then all; nothing is left.
    home.play("remove.yml", "--limit", "office")
    wait_for(lambda: "office" not in home.ready(), "the office is gone")
    listed = ("/opt/imbrex/venv/bin/imbrex", "cluster", "list", "--json", "--state-dir")
    state = "/var/lib/imbrex/coordinator"
    members = json.loads(home.machines["living-room"].ssh(*listed, state))["devices"]
    assert {each["name"] for each in members} == everybody - {"office"}
    home.play("remove.yml")
    for machine in home.machines.values():
        left = "ls -d /opt/imbrex /etc/imbrex /var/lib/imbrex /etc/systemd/system/imbrex* 2>&1"
        assert machine.ssh(f"{left} | grep -v 'No such file' || true") == ""
        assert machine.ssh("id imbrex 2>&1 || true").endswith("no such user\n")


def assert_private(machine: Machine) -> None:
    """No key is for others to read, no token in a command line or in the journal."""
    find = "find /etc/imbrex /var/lib/imbrex -name '*.pem' -perm /077"
    assert machine.ssh(find) == ""
    seen = machine.ssh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; journalctl --no-pager -o cat")
    assert "imbrex" in seen
    assert re.findall(r":8462/[0-9a-f]{64}/", seen) == []
    assert "PRIVATE KEY" not in seen


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
