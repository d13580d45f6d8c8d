"""How an emulated computer differs from this one, and the files that tell its daemon."""

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from imbrex.kinds.presets import DeviceRates
from imbrex.kinds.software import Software
from protos.daemon.documents import first_problem
from protos.daemon.files import read_text
from protos.errors import BadConfiguration


class Emulation(Software):
    """The extra costs of an emulated computer; the share of a core that computes is the worker's
    `pace`.

    Software takes so much longer, and reading a byte of weights `weight_ns`. `reference_s` are the
    CPU seconds of `rate.reference` on a core that nothing disturbs: kernels are timed relative to
    it, since other programs come and go. Workers that name the same folder `turns` compute in
    turns, and equal kernels take equal time on all of them: emulated computers share no caches and
    no cores.

    With `rates`, kernels are charged what a preset of these says of their nodes, for the engine
    that computes them soonest by these, times how much less efficient the tile is on this machine
    than the whole map; without, at the pace alone.
    """

    weight_ns: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    reference_s: Annotated[float, Field(ge=0, le=1)] = 0.0
    turns: Path | None = None
    rates: DeviceRates | None = None


class Computer(Emulation):
    """An emulated computer, with the `pace` of its worker."""

    pace: float

    def write(self, path: Path, turns: Path) -> Path:
        """The file that `imbrex.demo.emulation` runs a daemon by."""
        told = self.model_dump(exclude={"pace"}, exclude_none=True)
        return settings_file(path, {**told, "turns": turns})


def command(file: Path) -> tuple[str, ...]:
    """The command prefix that runs a daemon's command (`... imbrex worker --config FILE`) as `file`
    says.
    """
    return (sys.executable, "-m", __package__ or "", str(file))


def load_emulation(file: Path) -> Emulation:
    """Reads the settings from a TOML file.

    Raises:
        BadConfiguration: it cannot be read, or has an unknown key or a value out of range.
    """
    try:
        return Emulation(**tomllib.loads(read_text(file)))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        cause = str(error)
    except ValidationError as error:
        cause = first_problem(error)
    known = ", ".join(Emulation.model_fields)
    raise BadConfiguration(
        cause=f"the emulation file {file} cannot be used: {cause}", cure=f"Known keys: {known}"
    )


def settings_file(path: Path, told: Mapping[str, object]) -> Path:
    """Settings of a daemon as TOML."""
    path.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in told.items()))
    return path


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case dict():
            return f"{{{', '.join(f'{key} = {_toml(item)}' for key, item in value.items())}}}"
        case _:
            return f"'{value}'"
