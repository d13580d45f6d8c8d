"""How an emulated computer differs from this one."""

import sys
import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from imbrex.kinds.presets import DeviceRates
from protos.daemon.documents import first_problem
from protos.daemon.files import read_text
from protos.errors import BadConfiguration

_Charge = Annotated[float, Field(ge=0, le=1000)]


class Emulation(BaseModel):
    """The extra costs of an emulated computer; the share of a core that computes is the worker's
    `pace`.

    A message costs `message_ms` and each of its bytes `byte_ns` at either side, one from worker to
    worker `peer_message_ms` and `peer_byte_ns`; setting a task up takes `task_ms`, describing one
    at the host `describe_ms`, reading a byte of weights `weight_ns`. `reference_s` are the CPU
    seconds of `rate.reference` on a core that nothing disturbs: kernels are timed relative to it,
    since other programs come and go. Workers that name the same folder `turns` compute in turns,
    and equal kernels take equal time on all of them: emulated computers share no caches and no
    cores.

    With `rates`, kernels are charged what a preset of these says of their nodes, for the engine
    that computes them soonest by these, times how much less efficient the tile is on this machine
    than the whole map; without, at the pace alone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    message_ms: _Charge = 0.0
    byte_ns: _Charge = 0.0
    peer_message_ms: _Charge = 0.0
    peer_byte_ns: _Charge = 0.0
    task_ms: _Charge = 0.0
    describe_ms: _Charge = 0.0
    weight_ns: _Charge = 0.0
    reference_s: Annotated[float, Field(ge=0, le=1)] = 0.0
    turns: Path | None = None
    rates: DeviceRates | None = None


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
