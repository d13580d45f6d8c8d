"""What was answered in the last day, minute by minute: a ring in a file of fixed size.

A minute is written when it is over, in its own place, so the file never grows; a coordinator that
is killed loses the minute that had begun. What cannot be read is replaced, and a disk that cannot
be written to costs only what a restart would have kept.
"""

import statistics
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from protos.daemon.files import write_atomically

FILE = "day.ring"
MINUTES = 24 * 60
# Minutes in one column of the chart.
STEP = 10
# Latencies kept of the minute that is running: a home has a few per second.
MOST_TIMED = 10_000
_MAGIC = b"imbrex-day-1\n\0\0\0"
# A checksum of the rest; minute since the epoch, answers, errors, median and slowest latency.
_RECORD = struct.Struct("<IIIIff")
_REST = struct.Struct("<IIIff")
SIZE_BYTES = len(_MAGIC) + MINUTES * _RECORD.size

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Minute:
    """One minute; `number` counts from the epoch. Latencies are 0 without an answer."""

    number: int
    answered: int = 0
    failed: int = 0
    median_s: float = 0.0
    slowest_s: float = 0.0


class Day:
    """The minutes of the last day in which there were requests."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[int, Minute] = {}
        self._running = Minute(0)
        self._times: list[float] = []
        self._on_disk = self._load()
        self._disk_failed = False

    def add(self, ended_at: float, seconds: float, *, answered: bool) -> None:
        """A request that ended `ended_at` (seconds since the epoch)."""
        number = int(ended_at // 60)
        if number != self._running.number:
            self.close()
            self._running = Minute(number)
        running = self._running
        if answered and len(self._times) < MOST_TIMED:
            self._times.append(seconds)
        self._running = replace(
            running,
            answered=running.answered + answered,
            failed=running.failed + (not answered),
            slowest_s=max(running.slowest_s, seconds if answered else 0.0),
        )

    def close(self) -> None:
        """Writes the minute that is running."""
        ended = self._ended()
        if ended.answered or ended.failed:
            self._kept[ended.number % MINUTES] = ended
            self._write(ended.number % MINUTES)
        self._running, self._times = Minute(0), []

    def columns(self, now_s: float) -> list[Minute]:
        """The day before `now_s` in columns of `STEP` minutes, oldest first."""
        last = int(now_s // 60) // STEP
        first = last - MINUTES // STEP + 1
        found: dict[int, list[Minute]] = {}
        minutes = {minute.number: minute for minute in (*self._kept.values(), self._ended())}
        for minute in minutes.values():
            found.setdefault(minute.number // STEP, []).append(minute)
        return [_joined(number, found.get(number, ())) for number in range(first, last + 1)]

    def _ended(self) -> Minute:
        """The minute that is running, with what was kept of it before a restart."""
        running = self._running
        if self._times:
            running = replace(running, median_s=statistics.median(self._times))
        before = self._kept.get(running.number % MINUTES)
        if before is None or before.number != running.number:
            return running
        return replace(_joined(0, (before, running)), number=running.number)

    # ------------------------------------------------------------ the file

    def _load(self) -> bool:
        """Reads the file; whether all of it is right."""
        try:
            with self._path.open("rb") as file:
                data = file.read(SIZE_BYTES + 1)
        except FileNotFoundError:
            return False
        except OSError as error:
            log.warning("the last day cannot be read", file=str(self._path), cause=error.strerror)
            return False
        if len(data) != SIZE_BYTES or not data.startswith(_MAGIC):
            log.warning("the last day was damaged and begins anew", file=str(self._path))
            return False
        wrong = 0
        for place, (checksum, *rest) in enumerate(_RECORD.iter_unpack(data[len(_MAGIC) :])):
            minute, right = Minute(*rest), checksum == zlib.crc32(_REST.pack(*rest))
            if right and minute.number % MINUTES == place:
                self._kept[place] = minute
            elif checksum or any(rest):
                wrong += 1
        if wrong:
            log.warning("minutes of the last day were damaged", file=str(self._path), lost=wrong)
        return not wrong

    def _write(self, place: int) -> None:
        """One minute; everything if the file is not right. A disk that is full is told once."""
        try:
            if self._on_disk:
                with self._path.open("r+b") as file:
                    file.seek(len(_MAGIC) + place * _RECORD.size)
                    file.write(_packed(self._kept[place]))
            else:
                places = (self._kept.get(number) for number in range(MINUTES))
                packed = (_packed(minute) if minute else bytes(_RECORD.size) for minute in places)
                write_atomically(self._path, _MAGIC + b"".join(packed))
            self._on_disk, self._disk_failed = True, False
        except OSError as error:
            if not self._disk_failed:
                log.warning(
                    "the last day cannot be written and will not survive a restart",
                    file=str(self._path),
                    cause=error.strerror,
                )
            self._on_disk, self._disk_failed = False, True


def _packed(minute: Minute) -> bytes:
    told = (minute.number, minute.answered, minute.failed, minute.median_s, minute.slowest_s)
    return zlib.crc32(_REST.pack(*told)).to_bytes(4, "little") + _REST.pack(*told)


def _joined(number: int, minutes: Sequence[Minute]) -> Minute:
    """Minutes as one; its median is that of their medians, each as often as it has answers."""
    return Minute(
        number,
        sum(minute.answered for minute in minutes),
        sum(minute.failed for minute in minutes),
        _weighted_median(
            [(minute.median_s, minute.answered) for minute in minutes if minute.answered]
        ),
        max((minute.slowest_s for minute in minutes), default=0.0),
    )


def _weighted_median(values: Sequence[tuple[float, int]]) -> float:
    left = sum(weight for _, weight in values) / 2
    for value, weight in sorted(values):
        left -= weight
        if left <= 0:
            return value
    return 0.0


def told(columns: Sequence[Minute]) -> Iterator[dict[str, float | int | None]]:
    """Columns as the page gets them."""
    for column in columns:
        yield {
            "from": column.number * STEP * 60,
            "answered": column.answered,
            "failed": column.failed,
            "median_ms": round(column.median_s * 1e3, 2) if column.answered else None,
            "slowest_ms": round(column.slowest_s * 1e3, 2) if column.answered else None,
        }
