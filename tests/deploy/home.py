"""A home of booted machines, and the playbook that looks after them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.machines import Machine, booted, inside, network, why_not
from tests.deploy.packages import ROOT, build, run, wheels

ANSIBLE = ROOT / "deploy" / "ansible"
PLAYBOOK = os.environ.get("IMBREX_DEPLOY_ANSIBLE", "")
URL = "http://10.77.0.10:8460"

Counts = dict[str, dict[str, int]]
Inventory = dict[str, Any]

needs_machines = [
    pytest.mark.slow,
    pytest.mark.skipif(not PLAYBOOK, reason="run by `make test-deploy` only"),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]


@dataclass
class Home:
    """The machines; `settings` are of the command line, over those of the inventory."""

    machines: dict[str, Machine]
    inventory: Path
    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    key: str = ""
    plays: int = 0

    def play(self, name: str, *options: str) -> Counts:
        """Runs a playbook; per host, how many tasks were ok, changed, ...

        Raises:
            AssertionError: it failed.
        """
        code, said = self._play(name, *options)
        assert code == 0, said[-10000:]
        return _recap(said)

    def fail(self, name: str, *options: str) -> str:
        """Runs a playbook that does not succeed; what it says."""
        code, said = self._play(name, *options)
        assert code != 0, said[-10000:]
        return said

    def _play(self, name: str, *options: str) -> tuple[int, str]:
        command = [PLAYBOOK, "-i", str(self.inventory), str(ANSIBLE / name)]
        command += ["-e", json.dumps(self.settings), *options]
        # A connection to the machine that had an address in another home may still be open.
        settings = {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.folder / "ssh")}
        settings |= {"ANSIBLE_HOST_KEY_CHECKING": "0", "ANSIBLE_NOCOLOR": "1"}
        began_s = time.monotonic()
        ran = subprocess.run(
            inside(*command),
            cwd=ANSIBLE,
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=3600,
        )
        self.plays += 1
        (self.folder / f"play-{self.plays}.log").write_text(ran.stdout)
        took = f"{time.monotonic() - began_s:.0f} s:"
        print(took, " ".join([name, *options]), *_recap_lines(ran.stdout), sep="\n  ")
        return ran.returncode, ran.stdout

    def ask(self, *arguments: object, url: str = URL) -> Any:
        """What `imbrex ... --json` answers in the machines' network."""
        command = (sys.executable, "-m", "imbrex", *map(str, arguments), "--url", url, "--json")
        said = run(*inside("env", f"IMBREX_API_KEY={self.key}", *command), timeout_s=120)
        return json.loads(said)

    def answered(self) -> float:
        """How many requests the coordinator has answered since it started."""
        reading = (
            "from urllib.request import Request, urlopen\n"
            f"asked = Request('{URL}/metrics', headers={{'X-API-Key': '{self.key}'}})\n"
            "print(urlopen(asked, timeout=30).read().decode())"
        )
        said = run(*inside(sys.executable, "-c", reading))
        counts = re.findall(
            r'^imbrex_requests_total\{.*outcome="ok".*\} (\S+)$', said, re.MULTILINE
        )
        return sum(map(float, counts))

    def set(self, **variables: Any) -> None:
        """Writes variables into the inventory, for all machines."""
        inventory = json.loads(self.inventory.read_text())
        inventory["all"]["vars"] |= variables
        self.inventory.write_text(json.dumps(inventory))

    @contextlib.contextmanager
    def asked_all_the_time(self, picture: Path) -> Iterator[list[str]]:
        """Requests, one after the other, for as long as the context lasts; what went wrong."""
        failures: list[str] = []
        done = threading.Event()
        asked = 0

        def ask() -> None:
            nonlocal asked
            while not done.is_set():
                try:
                    self.ask("infer", picture, "--model", "digits")
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

    def ready(self) -> set[str]:
        """Names of devices that the coordinator uses."""
        return {each["name"] for each in self.ask("status")["devices"] if each["state"] == "ready"}

    def versions(self) -> dict[str, str]:
        """What each machine runs."""
        return {
            name: machine.ssh("/opt/imbrex/venv/bin/imbrex --version").split()[1]
            for name, machine in self.machines.items()
        }


def described(machines: dict[str, Machine], wheel: Path, key: Path) -> Inventory:
    """The inventory; the first machine is the coordinator."""
    hosts = {name: {"ansible_host": each.address} for name, each in machines.items()}
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/srv/wheels"}
    coordinator = next(iter(hosts))
    return {
        "all": {
            "vars": {
                "ansible_user": "root",
                "ansible_python_interpreter": "/usr/bin/python3",
                "ansible_ssh_private_key_file": str(key),
                "ansible_ssh_common_args": "-o UserKnownHostsFile=/dev/null",
                "imbrex_wheel": str(wheel),
                "imbrex_pip_environment": offline,
                "coordinator_profile": False,
                # They have no default route to be known by.
                "coordinator_host_worker": machines[next(iter(machines))].address,
            },
            "children": {
                "coordinator": {"hosts": {coordinator: hosts.pop(coordinator)}},
                "workers": {"hosts": hosts},
            },
        }
    }


@contextlib.contextmanager
def home_of(
    folder: Path,
    suites: Mapping[str, str],
    extras: str,
    packages: tuple[str, ...] = (),
    inventory_of: Callable[[dict[str, Machine], Path, Path], Inventory] = described,
) -> Iterator[Home]:
    """Bare machines of these suites that have booted, with wheels of this version and its extras
    and `packages` of Debian at hand.
    """
    wheel = build(ROOT, folder / "dist")
    house = wheels(folder / "wheels", [f"{wheel}[{extras},ncnn]"], ["3.11", "3.13"])
    key = folder / "key"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    machines = {
        name: Machine(name, suite, f"10.77.0.{10 + n}", folder / name, key, house, fetched=packages)
        for n, (name, suite) in enumerate(suites.items())
    }
    inventory = folder / "inventory.json"
    inventory.write_text(json.dumps(inventory_of(machines, wheel, key)))
    with network(), booted(list(machines.values())):
        yield Home(machines, inventory, folder)


def changes(counts: Counts) -> dict[str, int]:
    """How many tasks changed something on each host."""
    return {host: each["changed"] for host, each in counts.items()}


def _recap_lines(said: str) -> list[str]:
    return re.findall(r"^\S+\s+: ok=.*$", said, re.MULTILINE)


def _recap(said: str) -> Counts:
    return {
        line.split()[0]: {key: int(count) for key, count in re.findall(r"(\w+)=(\d+)", line)}
        for line in _recap_lines(said)
    }
