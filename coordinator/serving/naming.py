"""Which models can be named in a URL: the catalogue's, and files that the operator configured.

Only the operator gives paths. Over the network a file goes by its stem, and no other file of
this machine can be reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from models import catalogue
from protos.errors import NotFound


def source_of(name: str, configured: Sequence[str]) -> str:
    """The catalogue name or path behind a name in a URL.

    Raises:
        NotFound: nothing that may be asked for.
    """
    files = {public_name(each): each for each in configured}
    if name in files:
        return files[name]
    if name in catalogue.names():
        return name
    known = ", ".join(dict.fromkeys((*files, *catalogue.names())))
    raise NotFound(
        cause=f"there is no model {name!r}",
        cure=f"Known are {known}; a file must be named to `imbrex coordinator --model`",
    )


def public_name(source: str) -> str:
    """A configured model's name in URLs."""
    path = PurePath(source)
    return path.stem if path.suffix.lower() == ".onnx" else source
