"""Presets: small computers as numbers, committed as TOML with where they come from; and the time
scale that fits eight of them on one machine.

At scale s everything happens s times as fast: rates and bandwidths are multiplied, costs of
messages divided. Ratios stay, and a request takes 1/s of the time it would take on the devices.
"""

import json
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from coordinator.costs import Medium
from coordinator.costs.rates import RateCosts
from imbrex.kinds.software import SERVER, SERVER_TLS, Software
from protos.daemon.documents import first_problem
from protos.daemon.files import read_text
from protos.errors import BadRequest, NotFound

FOLDER = Path(__file__).parent / "presets"

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class EngineRates(BaseModel):
    """What an engine computes: `gflops` is what a convolution gets; `rate_1x1`, `rate_depthwise`,
    `rate_product` and `map_byte_ns` mean what they mean in a cluster file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    gflops: _Positive
    rate_1x1: _Positive = 1.0
    rate_depthwise: _Positive = 1.0
    rate_product: _Positive = 1.0
    map_byte_ns: _NotNegative = 0.0

    @property
    def rates(self) -> dict[str, Any]:
        """These numbers by their names."""
        return {key: getattr(self, key) for key in EngineRates.model_fields}

    def scaled(self, scale: float, memory: float = 0.0) -> Self:
        """The same engine on a device that is `scale` times as fast, and its memory `memory` times
        (0: as the rest).
        """
        maps_ns = self.map_byte_ns / (memory or scale)
        return self.model_copy(update={"gflops": self.gflops * scale, "map_byte_ns": maps_ns})


class OtherEngine(EngineRates):
    """A device's other engine, by its name."""

    name: str


class DeviceRates(EngineRates):
    """What a device computes with onnxruntime, and with other engines."""

    engine: tuple[OtherEngine, ...] = ()

    @property
    def costs(self) -> RateCosts:
        """The same for planners, but for reading weights."""
        others = tuple(RateCosts(**other.rates, engine=other.name) for other in self.engine)
        return RateCosts(**self.rates, others=others)

    def with_engines(self, names: Collection[str]) -> Self:
        """The same device with those of its other engines that are named."""
        engines = tuple(other for other in self.engine if other.name in names)
        return self.model_copy(update={"engine": engines})

    @property
    def computing(self) -> "DeviceRates":
        """Only what is about computing."""
        return DeviceRates(**self.rates, engine=self.engine)

    def scaled(self, scale: float, memory: float = 0.0) -> Self:
        """The same device, `scale` times as fast."""
        engines = tuple(other.scaled(scale, memory) for other in self.engine)
        return super().scaled(scale, memory).model_copy(update={"engine": engines})


class Preset(Software, DeviceRates):
    """One kind of device, and how they are connected. `mbps` is what a TCP stream gets, `weight_ns`
    what reading a byte of weights costs. `latency_ms` is the wire's one way; the lab's, between
    namespaces, has none. With `tls`, daemons are members of a cluster with an authority.

    A file may say `software` in place of what software costs: how many times slower it is than on
    the server's core on which it was measured.
    """

    mbps: _Positive
    message_ms: _NotNegative
    weight_ns: _NotNegative = 0.0
    latency_ms: _NotNegative = 0.0
    medium: Medium = "star"
    tls: bool = False

    @model_validator(mode="before")
    @classmethod
    def _software(cls, values: Any) -> Any:
        if isinstance(values, dict) and "software" in values:
            times = TypeAdapter(_Positive).validate_python(values["software"])
            rest = {key: value for key, value in values.items() if key != "software"}
            tls = TypeAdapter(bool).validate_python(values.get("tls", False))
            return {**server(tls=tls).slower(times), **rest}
        return values

    def scaled(self, scale: float, memory: float = 0.0) -> Self:
        """The same devices in a world that runs `scale` times as fast."""
        taking = (*Software.model_fields, "weight_ns", "latency_ms")
        quicker = {name: getattr(self, name) / scale for name in taking}
        faster = super().scaled(scale, memory)
        return faster.model_copy(update={"mbps": self.mbps * scale, **quicker})


def server(*, tls: bool) -> Software:
    """What software costs on the server's core, with mutual TLS or without."""
    return SERVER_TLS if tls else SERVER


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """A kind of device by its preset, and its name and its Ethernet for people."""

    preset: str
    title: str
    network: str


KINDS = {
    "pi3": DeviceKind("pi3b-ort", "Raspberry Pi 3", "100 Mbit/s"),
    "pi4": DeviceKind("pi4-gbe", "Raspberry Pi 4", "1 Gbit/s"),
    "pi5": DeviceKind("pi5-gbe", "Raspberry Pi 5", "1 Gbit/s"),
}


def names() -> tuple[str, ...]:
    """Every committed preset."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load_kind(name: str) -> Preset:
    """A committed preset, a TOML file of one's own, or a report of `imbrex bench --report`, whose
    most numerous kind of device it is.

    Raises:
        NotFound: there is none of this name.
        BadRequest: the file is wrong; the key is named.
    """
    path = Path(name) if name.endswith((".toml", ".json")) else FOLDER / f"{name}.toml"
    try:
        text = read_text(path)
        if path.suffix == ".toml":
            told = tomllib.loads(text)
        else:
            numbers = json.loads(text)["kinds"][0]["preset"]
            told = {name: number["value"] for name, number in numbers.items()}
        return Preset.model_validate(told)
    except FileNotFoundError:
        raise NotFound(
            cause=f"there is no preset {name!r}",
            cure=f"Known presets: {', '.join(names())}; or write a file and name it, with .toml",
        ) from None
    except ValidationError as error:
        raise BadRequest(
            cause=f"the preset {path}: {first_problem(error)}",
            cure=f"Its keys are {', '.join(Preset.model_fields)}",
        ) from error
    # Beside what cannot be read: what is no TOML, and no report.
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadRequest(
            cause=f"the preset {path} cannot be read: {error!r}",
            cure="Correct it; `imbrex bench --report` makes a .json, anything else is TOML",
        ) from error
