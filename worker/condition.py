"""How the machine feels: its temperature, and whether heat or power holds it back."""

from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

# Raspberry Pi's firmware: bit 0 under-voltage, 1 frequency capped, 2 throttled, 3 soft limit; the
# higher bits say what has happened since boot.
POWER_FLAGS = Path("/sys/devices/platform/soc/soc:firmware/get_throttled")
_NOW = 0xF
# Names of processors' sensors on boards and on PCs.
_SENSORS = ("cpu_thermal", "cpu-thermal", "soc_thermal", "coretemp", "k10temp")


def celsius() -> float:
    """The processor's temperature; 0 where nothing says."""
    read = getattr(psutil, "sensors_temperatures", None)
    found = read() if read is not None else {}
    return max((each.current for name in _SENSORS for each in found.get(name, ())), default=0.0)


def throttled(path: Path = POWER_FLAGS) -> bool:
    """Whether the firmware holds the processor back at this moment."""
    try:
        return bool(int(path.read_text().strip(), 16) & _NOW)
    except (OSError, ValueError):
        return False
