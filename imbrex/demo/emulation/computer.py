"""What daemons are told so that they behave like another computer, and the files that tell them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from imbrex.kinds.presets import DeviceRates


@dataclass(frozen=True, slots=True)
class Computer:
    """A worker's `pace`, and the charges of `Emulation`."""

    pace: float
    message_ms: float
    byte_ns: float
    task_ms: float
    weight_ns: float = 0.0
    peer_message_ms: float = 0.0
    peer_byte_ns: float = 0.0
    describe_ms: float = 0.0
    reference_s: float = 0.0
    rates: DeviceRates | None = None

    def write(self, path: Path, turns: Path) -> Path:
        """The file that `imbrex.demo.emulation` runs a daemon by; `turns` as in `Emulation`."""
        told = asdict(self) | {"turns": turns}
        del told["pace"], told["rates"]
        if self.rates is not None:
            told["rates"] = self.rates.model_dump()
        return settings_file(path, told)


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
