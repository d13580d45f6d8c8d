"""A Debian for 64-bit Arm on another kind of machine: its programs run under qemu, one by one.

Nothing boots: processes of it are processes here, see this network, and end with their parents.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.packages import image, run

SUITE, PYTHON = "bookworm", "3.11"
PACKAGES = "python3,python3-venv,ca-certificates,procps"
NEEDED = ("debootstrap", "qemu-aarch64-static", "update-binfmts", "chroot", "mount")
_FORMATS = Path("/proc/sys/fs/binfmt_misc")
# Programs under qemu take some ten times as long.
TIMEOUT_S = 3600.0


def why_not() -> str:
    """Why Arm programs cannot be run here; empty if they can."""
    if platform.machine() == "aarch64":
        return "this is an Arm machine: the whole suite runs on it as it is"
    if os.geteuid() != 0:
        return "another system's root directory is for root only"
    if [program for program in NEEDED if shutil.which(program) is None]:
        return "not installed here: apt-get install debootstrap qemu-user-static binfmt-support"
    return ""


def understood() -> None:
    """Has the kernel start Arm programs by qemu, from now on."""
    if not (_FORMATS / "register").exists():
        run("mount", "-t", "binfmt_misc", "binfmt_misc", _FORMATS)
    if not (_FORMATS / "qemu-aarch64").exists():
        run("update-binfmts", "--enable", "qemu-aarch64")


@dataclass(frozen=True)
class Emulated:
    """The system; `shared` is the same folder inside as outside."""

    root: Path
    shared: Path

    def within(self) -> tuple[str, ...]:
        """Begins a command that runs inside."""
        return ("chroot", str(self.root))

    def python(self) -> tuple[str, ...]:
        """Begins a command line of this computer's Python that the installed one inside runs."""
        return (*self.within(), "sh", "-c", 'shift; exec /opt/imbrex/bin/python "$@"', "sh")

    def run(self, *command: str | Path) -> str:
        """What a command inside prints."""
        return run(*self.within(), *command, timeout_s=TIMEOUT_S)


@contextlib.contextmanager
def emulated(folder: Path) -> Iterator[Emulated]:
    """A fresh one; the image that it is made from is kept."""
    understood()
    installed = image(SUITE, PACKAGES, "arm64")
    root, shared = folder / "root", folder / "shared"
    for each in (root, shared, folder / "changed", folder / "work"):
        each.mkdir(parents=True)
    layers = f"lowerdir={installed},upperdir={folder}/changed,workdir={folder}/work"
    run("mount", "-t", "overlay", "overlay", "-o", layers, root)
    try:
        inside = root / shared.relative_to("/")
        inside.mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", shared, inside)
        run("mount", "-t", "proc", "proc", root / "proc")
        run("mount", "--rbind", "/dev", root / "dev")
        run("mount", "--make-rslave", root / "dev")
        yield Emulated(root, shared)
    finally:
        run("umount", "--recursive", root, check=False)
