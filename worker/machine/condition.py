"""The condition of the machine: its temperature, and whether heat or power throttles it."""

from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

# Raspberry Pi's firmware reports flags in hexadecimal; in newer kernels a Pi 5's `soc` has an
# address in its name. Bit 0 is under-voltage, 1 frequency capped, 2 throttled, 3 soft limit; the
# higher bits say what has happened since boot.
POWER_FLAGS = "sys/devices/platform/soc*/soc*:firmware/get_throttled"
# Mainline kernels report only under-voltage.
VOLTAGE_ALARM = "sys/class/hwmon/hwmon*/in0_lcrit_alarm"
_VOLTAGE_SENSOR = "rpi_volt"
_UNDER_VOLTAGE = 1 << 0
_NOW = 0xF
# Names of processor sensors on Raspberry Pis and PCs.
_SENSORS = ("cpu_thermal", "cpu-thermal", "soc_thermal", "coretemp", "k10temp")


def celsius() -> float:
    """The processor's temperature in degrees Celsius; 0 if unknown."""
    read = getattr(psutil, "sensors_temperatures", None)
    sensors = read() if read is not None else {}
    readings = (reading for name in _SENSORS for reading in sensors.get(name, ()))
    return max((reading.current for reading in readings), default=0.0)


def power_flags(root: Path) -> int:
    """The firmware's flags, read below `root`; 0 if unknown."""
    for file in root.glob(POWER_FLAGS):
        with suppress(OSError, ValueError):
            return max(0, int(file.read_text().strip(), 16))
    for file in root.glob(VOLTAGE_ALARM):
        with suppress(OSError, ValueError):
            if file.with_name("name").read_text().strip() == _VOLTAGE_SENSOR:
                return _UNDER_VOLTAGE if int(file.read_text()) else 0
    return 0


def throttled(root: Path = Path("/")) -> bool:
    """Whether heat or power throttles the processor now."""
    return bool(power_flags(root) & _NOW)
