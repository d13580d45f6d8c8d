"""Debian machines that really boot: systemd in containers, on a bridge of their own.

Everything is in a network namespace: nothing of this computer's network is changed, and the
machines see each other and nobody else. They install from wheels that lie in a folder here.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.packages import image, run

NAMESPACE = "imbrex-deploy"
BRIDGE = "imbrex0"
OURS = "10.77.0.1"
PACKAGES = (
    "systemd,systemd-sysv,dbus,python3,python3-venv,python3-apt,openssh-server,iproute2,"
    "ca-certificates,procps,sudo"
)
PROGRAMS = ("debootstrap", "systemd-nspawn", "ip", "nsenter", "ssh", "ssh-keygen", "mount")
# Four machines boot on two shared cores.
BOOT_TIMEOUT_S = 300.0
# systemd-nspawn's exit code when the machine asks to be booted again.
_REBOOT = 133

_WANTED = "etc/systemd/system/multi-user.target.wants"
# What outlives an upgrade of a worker's system, beside its user.
KEPT = ("opt/imbrex", "etc/imbrex", "var/lib/imbrex", "etc/systemd/system/imbrex-worker.service")
_NETWORK = "[Match]\nName=host0\n[Network]\nAddress={address}/24\nLinkLocalAddressing=no\n"


def why_not() -> str:
    """Why machines cannot be booted here; empty if they can."""
    if os.geteuid() != 0:
        return "machines are booted by root only"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if not missing:
        return ""
    install = "apt-get install debootstrap systemd-container iproute2 openssh-client"
    return f"not installed here: {', '.join(missing)}. {install}"


def inside(*command: str | Path) -> tuple[str, ...]:
    """The command that runs another in the machines' network."""
    return ("nsenter", f"--net=/run/netns/{NAMESPACE}", *map(str, command))


@contextlib.contextmanager
def network() -> Iterator[None]:
    """A namespace with a bridge; multicast passes, as it does at home."""
    run("ip", "netns", "del", NAMESPACE, check=False)
    run("ip", "netns", "add", NAMESPACE)
    try:
        run(*inside("ip", "link", "set", "lo", "up"))
        bridge = ("ip", "link", "add", BRIDGE, "type", "bridge", "mcast_snooping", "0")
        run(*inside(*bridge))
        run(*inside("ip", "address", "add", f"{OURS}/24", "dev", BRIDGE))
        run(*inside("ip", "link", "set", BRIDGE, "up"))
        yield
    finally:
        run("ip", "netns", "del", NAMESPACE, check=False)


@dataclass
class Machine:
    """One of them; `root` is what it sees as its disk. `fetched` are packages that its user may
    install although the internet is out of reach: apt has fetched them before it boots.
    """

    name: str
    suite: str
    address: str
    folder: Path
    key: Path
    wheels: Path
    fetched: Sequence[str] = ()
    boots: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)
    _keeper: threading.Thread | None = None

    @property
    def root(self) -> Path:
        """Its disk, while it runs."""
        return self.folder / "root"

    def start(self, installed: Path, accounts: Mapping[str, Sequence[str]] | None = None) -> None:
        """Boots it from an image, which stays as it is; boots it again when it reboots.

        `accounts` are lines of files such as /etc/passwd, beside the image's.
        """
        for name in ("root", "changed", "work"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        layers = f"lowerdir={installed},upperdir={self.folder}/changed,workdir={self.folder}/work"
        run("mount", "-t", "overlay", "overlay", "-o", layers, self.root)
        if self.fetched:
            self._fetch()
        self._configure()
        for name, lines in (accounts or {}).items():
            with (self.root / name).open("a") as file:
                file.writelines(lines)
        self._stopping.clear()
        self._keeper = threading.Thread(target=self._keep_booted)
        self._keeper.start()

    def stop(self) -> None:
        """Switches it off."""
        self._stopping.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
        if self._keeper is not None:
            self._keeper.join(60)
        run("umount", self.root, check=False)

    def upgrade(self, suite: str) -> None:
        """Another Debian in its place, with everything of imbrex as it was, its user included."""
        kept = self.folder / "kept"
        for path in (*KEPT, f"{_WANTED}/imbrex-worker.service"):
            (kept / path).parent.mkdir(parents=True, exist_ok=True)
            run("cp", "-a", self.root / path, kept / path)
        accounts = {
            name: re.findall(r"(?m)^imbrex:.*\n", (self.root / name).read_text())
            for name in ("etc/passwd", "etc/group", "etc/shadow")
        }
        self.stop()
        for name in ("changed", "work"):
            shutil.rmtree(self.folder / name)
        kept.rename(self.folder / "changed")
        self.suite = suite
        self.start(image(suite, PACKAGES), accounts)

    def ssh(self, *command: str, check: bool = True) -> str:
        """What a command prints there."""
        options = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")
        options += ("-o", "ConnectTimeout=5", "-o", "LogLevel=ERROR", "-i", str(self.key))
        return run(*inside("ssh", *options, f"root@{self.address}", *command), check=check)

    def cut(self) -> None:
        """Pulls its cable: nobody is told."""
        self._cable("down")

    def mend(self) -> None:
        """Undoes `cut`."""
        self._cable("up")

    def _cable(self, state: str) -> None:
        run(*inside("ip", "link", "set", f"vb-{self.name}", state))

    def is_up(self) -> bool:
        """Whether its system has started."""
        state = self.ssh("systemctl", "is-system-running", check=False).strip()
        return state in {"running", "degraded"}

    def _fetch(self) -> None:
        apt = ("apt-get", "--quiet", "--yes")
        fetching = (*apt, "install", "--download-only", *self.fetched)
        # Nothing of it runs: it is a process in its files, in this computer's network.
        entered = ("systemd-nspawn", "-D", self.root, "--quiet", "--pipe", "--register=no")
        entered += ("--keep-unit", "--resolv-conf=bind-host", "--timezone=off")
        for command in ((*apt, "update"), fetching):
            run(*entered, *command)

    def _configure(self) -> None:
        root = self.root
        (root / "etc/hostname").write_text(f"{self.name}\n")
        (root / "etc/machine-id").write_text("")
        with (root / "etc/login.defs").open("a") as file:  # ids that packages of no suite have
            file.write("SYS_UID_MAX 950\nSYS_GID_MAX 950\n")
        network = root / "etc/systemd/network/10-host0.network"
        network.write_text(_NETWORK.format(address=self.address))
        wanted = root / _WANTED
        wanted.mkdir(parents=True, exist_ok=True)
        for unit in ("systemd-networkd.service", "ssh.service"):
            (wanted / unit).unlink(missing_ok=True)
            (wanted / unit).symlink_to(f"/lib/systemd/system/{unit}")
        keys = root / "root/.ssh/authorized_keys"
        keys.parent.mkdir(mode=0o700, exist_ok=True)
        keys.write_text(self.key.with_suffix(".pub").read_text())

    def _keep_booted(self) -> None:
        command = inside(
            "systemd-nspawn",
            *("-D", str(self.root), f"--machine={self.name}", "--boot", "--register=no"),
            *("--keep-unit", "--resolv-conf=off", "--timezone=off", f"--network-bridge={BRIDGE}"),
            f"--bind-ro={self.wheels}:/srv/wheels",
        )
        with (self.folder / "console.log").open("ab") as console:
            while not self._stopping.is_set():
                self.boots += 1
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=console,
                    start_new_session=True,
                )
                if self._process.wait() != _REBOOT:
                    return


def wait_for(condition: Callable[[], object], what: str, within_s: float = BOOT_TIMEOUT_S) -> None:
    """Waits until something is true."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(0.5)


@contextlib.contextmanager
def booted(machines: Sequence[Machine]) -> Iterator[None]:
    """All of them, up."""
    try:
        for machine in machines:
            machine.start(image(machine.suite, PACKAGES))
        for machine in machines:
            wait_for(machine.is_up, f"{machine.name} is up; see {machine.folder}/console.log")
        yield
    finally:
        for machine in machines:
            machine.stop()
