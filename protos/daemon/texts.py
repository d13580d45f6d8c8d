"""Text of any alphabet where it leaves: as identifiers in ASCII (topics, ids of entities, names of
files), and on terminals that lack some of its characters.

What the characters of an identifier cannot say, a hash does, so that different names stay different
after a restart and in any order. Of names in ASCII nothing is hashed: their ids are in other
people's files.
"""

import codecs
import io
import re
import sys
import unicodedata
from hashlib import sha256

_HASH_DIGITS = 8
# What bars and rules are drawn with, for terminals that have no such characters.
_PLAINER = str.maketrans("█▉▊▋▌▍▎▏─━│…", "#######|--|.")


def composed(name: str) -> str:
    """The name with accents as other systems write them: macOS separates them from letters."""
    return unicodedata.normalize("NFC", name)


def plain_name(name: str, others: str) -> str:
    """An identifier for the name. `others` is a regular expression for the characters that it may
    not have; each match becomes `_`.
    """
    name = composed(name)
    if name.isascii():
        return re.sub(others, "_", name)
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return f"{re.sub(others, '_', letters).strip('_')}_{name_hash(name)}".lstrip("_")


def name_hash(name: str) -> str:
    """Some digits that other names do not have."""
    return sha256(composed(name).encode()).hexdigest()[:_HASH_DIGITS]


def write_anything() -> None:
    """Lets standard output and standard error write every text, whatever encoding the terminal has:
    characters that it lacks become plainer ones, or escapes.
    """
    codecs.register_error("imbrex", _plainer)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="imbrex")


def _plainer(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    there = error.object[error.start : error.end]
    plain = there.translate(_PLAINER)
    return plain.encode("ascii", "backslashreplace").decode(), error.end
