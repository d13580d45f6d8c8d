"""The line that adds packages to this very installation.

imbrex is on no package index, so `pip install` cannot find it, nor its extras, by name. Their
packages it finds, and the metadata of this installation lists them.
"""

import shlex
import sys
from importlib import metadata
from pathlib import Path

# pipx describes each environment that it makes in this file.
_OF_PIPX = "pipx_metadata.json"


def line_for_extra(extra: str) -> str:
    """The command that installs what this extra of imbrex consists of."""
    needs = (need.partition(";") for need in metadata.requires("imbrex") or ())
    ours = {f'extra == "{extra}"', f"extra == '{extra}'"}
    return line_to_install(*(name.strip() for name, _, when in needs if when.strip() in ours))


def line_to_install(*packages: str) -> str:
    """The command that installs these packages beside imbrex."""
    beside = Path(sys.prefix)
    if (beside / _OF_PIPX).exists():
        words = ["pipx", "inject", beside.name]
    else:
        words = [sys.executable, "-m", "pip", "install"]
    return shlex.join([*words, *packages])
