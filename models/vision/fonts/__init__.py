"""Fonts for labels of any alphabet: DejaVu Sans comes with imbrex (Latin, Greek, Cyrillic and some
more), other scripts are drawn if the system has a font for them.
"""

import os
import unicodedata
from functools import lru_cache
from pathlib import Path

from PIL import ImageFont

OWN = Path(__file__).parent / "DejaVuSans.ttf"
FOLDERS = (
    Path("/usr/share/fonts"),
    Path("/usr/local/share/fonts"),
    Path(os.path.expanduser("~/.local/share/fonts")),  # where there is no home, "~" is no folder
)
SUFFIXES = frozenset({".ttf", ".otf", ".ttc"})
# Desktops have thousands, in folders by family; one that has a script is among the plain ones.
MOST_FONTS = 300
# Opened files of fonts and sizes of text; some hundred kilobytes each.
MOST_OPENED = 32
MOST_CHARACTERS = 10_000
_LOOK_PX = 16
_NO_CHARACTER = "\uffff"


def font_for(text: str, size_px: int) -> ImageFont.FreeTypeFont | None:
    """A font that has every character of the text; None if there is none."""
    for path in (OWN, *of_the_system()):
        if all(_has(path, character) for character in text):
            return _opened(path, size_px)
    return None


@lru_cache(MOST_CHARACTERS)
def _has(path: Path, character: str) -> bool:
    """Whether a font draws a character as anything but the box for characters that it lacks."""
    if unicodedata.category(character) in ("Zs", "Cf"):
        return True
    font = _opened(path, _LOOK_PX)
    if font is None:
        return False
    drawn, lacking = (font.getmask(glyph, mode="L") for glyph in (character, _NO_CHARACTER))
    return (drawn.size, bytes(drawn)) != (lacking.size, bytes(lacking))


@lru_cache(MOST_OPENED)
def _opened(path: Path, size_px: int) -> ImageFont.FreeTypeFont | None:
    try:
        return ImageFont.truetype(path, size_px)
    except (OSError, ValueError):  # not a font, or pictures of one size
        return None


@lru_cache(1)
def of_the_system() -> tuple[Path, ...]:
    """The installed fonts, upright ones without serifs first."""
    try:
        files = [path for folder in FOLDERS for path in folder.rglob("*")]
    except OSError:
        return ()
    found = (file for file in files if file.suffix.lower() in SUFFIXES)
    return tuple(sorted(found, key=_rank)[:MOST_FONTS])


def _rank(path: Path) -> tuple[bool, bool, str]:
    name = path.stem.lower()
    is_slanted = any(word in name for word in ("italic", "oblique", "bold", "mono"))
    return is_slanted, "sans" not in name, str(path)
