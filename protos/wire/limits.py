"""What a device takes whose engine computes whole networks only."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from protos.errors import BadConfiguration

# Networks that were compiled for one device; the facts are sent every few seconds.
MOST = 256
# Every type that the wire carries.
ALL_TYPES = frozenset(
    {
        *("float16", "float32", "float64", "bool", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
    }
)

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHAPE = re.compile(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8}){0,7}")


@dataclass(frozen=True, slots=True)
class Limits:
    """Whole networks, and of these only what is named: `networks` by the SHA-256 of their ONNX
    files, the `shapes` of their inputs (`1x3x640x640`), the `dtypes` (numpy's names) of their
    inputs and outputs, as they travel: a picture as uint8. An empty collection allows everything.

    Raises:
        BadConfiguration: something else is named.
    """

    networks: Collection[str] = ()
    shapes: Collection[str] = ()
    dtypes: Collection[str] = ()

    def __post_init__(self) -> None:
        checks: tuple[tuple[str, Callable[[str], object], str], ...] = (
            ("networks", _SHA256.fullmatch, "the SHA-256 of an ONNX file in 64 lower-case digits"),
            ("shapes", _SHAPE.fullmatch, "a shape such as 1x3x640x640"),
            ("dtypes", ALL_TYPES.__contains__, f"one of {', '.join(sorted(ALL_TYPES))}"),
        )
        for name, is_right, form in checks:
            given = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Collection) or len(given) > MOST:
                raise _wrong(f"{name} are not a collection of at most {MOST} texts")
            for value in given:
                if not isinstance(value, str) or not is_right(value):
                    raise _wrong(f"{name} name {str(value)[:80]!r}, which is not {form}")
            object.__setattr__(self, name, tuple(sorted(set(given))))

    def take(self, network: str, shapes: Collection[str], dtypes: Collection[str]) -> bool:
        """Whether the device takes the network from an ONNX file of this SHA-256 (empty: from no
        file), with inputs of these shapes and inputs and outputs of these types.
        """
        return (
            (not self.networks or network in self.networks)
            and (not self.shapes or set(shapes) <= set(self.shapes))
            and (not self.dtypes or set(dtypes) <= set(self.dtypes))
        )

    def __str__(self) -> str:
        count = len(self.networks)
        named = f"{count} of them" if count else ""
        return ", ".join(("whole networks only", *filter(None, (named, *self.shapes))))


def _wrong(what: str) -> BadConfiguration:
    return BadConfiguration(
        cause=f"the limits of the engine are wrong: {what}",
        cure="Correct the engine (docs/engines.md), or set another one",
    )
