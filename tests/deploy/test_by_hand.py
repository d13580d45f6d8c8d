"""A home set up by hand: README's own lines, typed by a user on machines that really boot, as the
README has them: `make test-deploy`.
"""

from __future__ import annotations

import json
import re
import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from models.digits.examples import examples
from tests.deploy.home import PLAYBOOK
from tests.deploy.machines import OURS, Machine, booted, inside, network, wait_for, why_not
from tests.deploy.packages import ROOT, build, run, wheels
from tests.deploy.terminal import INTERRUPT, Terminal
from tests.docs.commands import blocks

COMPUTER, HUB, OTHERS = (
    block.text.splitlines()
    for block in blocks()
    if block.page == "README.md" and "Raspberry Pi" in block.needs
)
(PAGE,) = re.findall(r"`(http://hub\.local:\d+/)`", (ROOT / "README.md").read_text())
SUITES = {"hub": "bookworm", "pi-1": "trixie"}
SHEET = examples()[0]
# What a fresh Raspberry Pi OS has, too: a user who may become root, a way out; and pip's packages
# from a folder.
PREPARED = f"""
useradd --create-home --shell /bin/bash pi
echo 'pi ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/pi
install -d -o pi -g pi -m 0700 /home/pi/.ssh
install -o pi -g pi -m 0600 ~root/.ssh/authorized_keys /home/pi/.ssh/
ip route add default via {OURS}
printf '[global]\\nno-index = true\\nfind-links = /srv/wheels\\n' >/etc/pip.conf
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PLAYBOOK, reason="run by `make test-deploy` only"),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]


@dataclass
class Home:
    """The machines, and the configuration of ssh that knows them by the README's names."""

    folder: Path
    config: Path

    def run_here(self, line: str) -> None:
        """Runs a line on one's own computer."""
        known = f'scp() {{ command scp -F {self.config} "$@"; }}'
        run(*inside("bash", "-e", "-c", f"cd {self.folder}; {known}; {line}"))

    def there(self, host: str, *command: str) -> str:
        """What a command prints in a login shell of its own."""
        shell = shlex.join(["bash", "-l", "-c", shlex.join(command)])
        return run(*inside("ssh", "-F", self.config, f"pi@{host}.local", shell))

    def terminal(self, host: str) -> Terminal:
        return Terminal(self.config, f"pi@{host}.local")

    def states(self) -> dict[str, str]:
        """What the coordinator says of each device."""
        status = json.loads(self.there("hub", "imbrex", "status", "--json"))
        return {each["name"]: each["state"] for each in status["devices"]}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    wheel = build(ROOT, folder / "dist")
    # pipx brings pip and its like up to date before it installs.
    wanted = [f"{wheel}[coordinator,ncnn]", "pip", "setuptools", "wheel"]
    house = wheels(folder / "wheels", wanted, ["3.11", "3.13"])
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key")
    machines = [
        Machine(
            name, suite, f"10.77.0.{10 + n}", folder / name, folder / "key", house, fetched=["pipx"]
        )
        for n, (name, suite) in enumerate(SUITES.items())
    ]
    config = folder / "ssh_config"
    known = [f"Host {each.name}.local\n  HostName {each.address}\n" for each in machines]
    common = f"Host *\n  IdentityFile {folder}/key\n  StrictHostKeyChecking no\n"
    config.write_text(
        "".join(known) + common + "  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    with network(), booted(machines):
        for machine in machines:
            machine.ssh(PREPARED)
        yield Home(folder, config)


def test_readmes_lines_make_a_home_that_answers(home) -> None:
    made, *copied = COMPUTER
    assert made.split()[:2] == ["make", "dist"]  # the fixture has built the same wheel
    for line in copied:
        home.run_here(line)
    *installing, coordinating, inviting = HUB
    *installing_others, joining = OTHERS
    with ExitStack() as opened:
        hub = opened.enter_context(home.terminal("hub"))
        for line in installing:
            print(hub.run(line))
        hub.type(coordinating)
        hub.see("ready")

        other = opened.enter_context(home.terminal("hub"))
        (token,) = re.findall(r"^\S+:8462/[0-9a-f]{64}/\S+$", other.run(inviting), re.MULTILINE)

        pi = opened.enter_context(home.terminal("pi-1"))
        for line in installing_others:
            print(pi.run(line))
        pi.type(joining.replace("TOKEN", token))
        wait_for(lambda: home.states() == {"host": "ready", "pi-1": "ready"}, "pi-1 is used")
        print(said := other.run("imbrex status"))
        assert re.search(r"^.*\bpi-1\b.*\bready\b.*$", said, re.MULTILINE)
        assert_answers(home)

        pi.type(INTERRUPT)
        pi.see(r"\[ended")
        wait_for(lambda: home.states().get("pi-1") != "ready", "pi-1 is missed")
        pi.type(joining.replace(" --join TOKEN", ""))
        wait_for(lambda: home.states().get("pi-1") == "ready", "pi-1 is used again")
        assert_answers(home)
        assert_shows_the_page(home)


def assert_answers(home: Home) -> None:
    """A picture is answered by the whole cluster, and rightly."""
    home.run_here(f"scp {SHEET.path} pi@hub.local:")
    answer = json.loads(home.there("hub", "imbrex", "infer", SHEET.path.name, "--json"))
    assert sorted(each["label"] for each in answer["predictions"]) == sorted(
        digit.label for digit in SHEET.truth
    )


def assert_shows_the_page(home: Home) -> None:
    """The page is there for a browser that knows the machine by its name."""
    name = PAGE.split("/")[2]
    asked = PAGE.replace("hub.local", "10.77.0.10")
    reading = (
        "from urllib.request import Request, urlopen\n"
        f"print(urlopen(Request('{asked}', headers={{'Host': '{name}'}}), timeout=30).status)"
    )
    assert home.there("pi-1", "python3", "-c", reading).strip() == "200"
