"""`imbrex watch`: frames from a source to a coordinator, answers as lines of JSON.

Standard output has one object per frame, in the order of the answers; rate and latency go to
standard error.
"""

import json
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from rich.live import Live
from rich.spinner import Spinner

from coordinator.serving.common import names
from coordinator.serving.common.keys import NoKey, NotAllowed
from imbrex import terminal
from imbrex.calls import plain
from imbrex.client import Client, NoCoordinator
from imbrex.watch.folder import Folder
from imbrex.watch.video_frames import Frame, FrameSource, Waiting
from protos.daemon.process_memory import cap_memory
from protos.daemon.urls import HIDDEN, shown
from protos.errors import BadConfiguration, BadRequest, TooLittleMemory, Unavailable

# The window of rate and latency.
WINDOW_S = 10.0
# A failed frame is not sent again: after this pause, the newest one is.
PAUSE_S = 1.0
# At the end, a source that waits for a silent camera is abandoned after this time.
LEAVE_S = 1.0

# The memory cap beyond the start and thread stacks. FFmpeg accepts any frame size that a camera
# claims, up to 2 GB; the largest that is decoded, by four threads, takes 200 MB.
MOST_MEMORY_BYTES = 256 << 20

Line = Mapping[str, Any]
Sink = Callable[[Line], None]


@dataclass(frozen=True, slots=True)
class Watched:
    """The options. `most`: the number of frames to answer, 0 for no limit; `per_s`: the most frames
    per second, 0 for as many as can be answered.
    """

    url: str
    model: str
    at_once: int = 1
    most: int = 0
    per_s: float = 0.0


@dataclass
class Pace:
    """The recent rate and latency of answers: threads add some while another one asks."""

    _ends: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=10_000))
    answered: int = 0
    failed: int = 0

    def add(self, now_s: float, latency_s: float) -> None:
        """Counts an answer."""
        self.answered += 1
        self._ends.append((now_s, latency_s))

    def rate(self, now_s: float) -> float:
        """Answers per second of the last ten seconds."""
        recent = [end for end, _ in list(self._ends) if end > now_s - WINDOW_S]
        return (len(recent) - 1) / (recent[-1] - recent[0]) if len(recent) > 1 else 0.0

    def latency_s(self, now_s: float) -> float:
        """The median of the last ten seconds."""
        recent = [taken for end, taken in list(self._ends) if end > now_s - WINDOW_S]
        return median(recent) if recent else 0.0


def source_of(text: str, *, existing: bool, called: str = "") -> FrameSource:
    """The folder or stream named by the user, who calls it so.

    Raises:
        BadRequest: it is neither.
        NotFound: no such folder.
    """
    if "://" in text:
        from imbrex.watch.stream import Stream

        if not _can_be_split(text):
            raise BadRequest(
                cause=f"the URL {shown(text)} cannot be read: it is unclear where its host ends",
                cure="Replace special characters of a password: # is %23, / is %2F, ? is %3F, "
                "@ is %40, [ is %5B; or put it into IMBREX_CAMERA_PASSWORD",
            )
        return Stream(text, called)
    if not Path(text).exists() and set(text) & set("@:?#"):
        raise BadRequest(
            cause="the source is no folder, and no URL either",
            cure="Write a camera's URL with its protocol: rtsp://HOST/PATH, http://HOST/PATH",
        )
    if Path(text).is_file():
        raise BadRequest(
            cause=f"{text} is a file", cure="Give its folder, or use `imbrex infer` for one picture"
        )
    return Folder(Path(text), existing)


def _can_be_split(url: str) -> bool:
    try:
        return urlsplit(url).port != 0 and shown(url) != HIDDEN
    except ValueError:
        return False


class Watch:
    """One source, and the tasks that send its frames."""

    def __init__(self, source: FrameSource, wanted: Watched, sinks: list[Sink]) -> None:
        self._source, self._wanted, self._sinks = source, wanted, sinks
        self._waiting = Waiting(source.keeps)
        self._stopped = threading.Event()
        self._telling = threading.Lock()
        self._taken = 0
        self._next_s = 0.0
        self.pace = Pace()
        self._failure: Exception | None = None
        self._failing = False

    def stop(self) -> None:
        """Stops; answers in progress are still printed."""
        self._stopped.set()
        self._waiting.close(at_once=True)

    def run(self) -> None:
        """Returns when it ends.

        Raises:
            ImbrexError: the source or the coordinator cannot be used.
        """
        giving = threading.Thread(target=self._give, daemon=True)
        asking = [
            threading.Thread(target=self._answer_all, daemon=True)
            for _ in range(self._wanted.at_once)
        ]
        for thread in (giving, *asking):
            thread.start()
        for thread in asking:
            while thread.is_alive():  # so that signals are still handled
                thread.join(0.2)
        self.stop()
        giving.join(LEAVE_S)
        if self._failure is not None:
            raise self._failure

    def told(self) -> str:
        """The status in one line."""
        now = time.monotonic()
        pace = self.pace
        return (
            f"{pace.answered} answered, {pace.rate(now):.1f} per second, "
            f"{terminal.duration(pace.latency_s(now))} each, {self._waiting.dropped} dropped"
            + (f", {pace.failed} failed" if pace.failed else "")
        )

    def _give(self) -> None:
        try:
            self._source.run(self._waiting.put, self._stopped)
        except Exception as error:
            self._fail(error)
        finally:
            self._waiting.close()

    def _answer_all(self) -> None:
        try:
            self._answer_until_the_end()
        except Exception as error:
            self._fail(error)

    def _answer_until_the_end(self) -> None:
        with Client(self._wanted.url) as client:
            while self._may_take() and (frame := self._waiting.take()) is not None:
                try:
                    self._tell(self._answer(client, frame))
                except (NoKey, NotAllowed):
                    raise
                except (Unavailable, TooLittleMemory, BadRequest) as error:
                    if isinstance(error, NoCoordinator) and not self.pace.answered:
                        raise
                    fields = {"code": error.code, "cause": error.cause, "cure": error.cure}
                    self._tell({**_about(self._source.name, frame), "error": fields})
                    if not isinstance(error, BadRequest):
                        self._stopped.wait(PAUSE_S)

    def _may_take(self) -> bool:
        """Waits for the next frame's turn; False at the end."""
        with self._telling:
            if self._wanted.most and self._taken >= self._wanted.most:
                return False
            self._taken += 1
            now = time.monotonic()
            pause_s = self._next_s - now
            if self._wanted.per_s:
                self._next_s = max(self._next_s, now) + 1 / self._wanted.per_s
        if pause_s > 0:
            self._stopped.wait(pause_s)
        return not self._stopped.is_set()

    def _answer(self, client: Client, frame: Frame) -> Line:
        body = frame.read()
        started_s = time.monotonic()
        answer = client.infer(self._wanted.model, body, names.OCTETS)
        ended_s = time.monotonic()
        self.pace.add(ended_s, ended_s - started_s)
        return {
            **_about(self._source.name, frame),
            "latency_s": round(ended_s - started_s, 4),
            "age_s": round(time.time() - frame.taken_s, 4),
            "dropped": self._waiting.dropped,
            **plain(answer),
        }

    def _tell(self, line: Line) -> None:
        error = line.get("error")
        with self._telling:
            # A service's standard output goes nowhere; its log has the first of these.
            if error and not self._failing and not sys.stderr.isatty():
                print(f"error: {error['cause']}. {error['cure']}", file=sys.stderr, flush=True)
            self._failing = bool(error)
            self.pace.failed += self._failing
            for sink in self._sinks:
                sink(line)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self.stop()


def watch(source: FrameSource, wanted: Watched, sinks: list[Sink]) -> int:
    """Watches until the source ends, Ctrl-C or SIGTERM; returns the exit code."""
    cap_memory(MOST_MEMORY_BYTES)
    watching = Watch(source, wanted, [_print, *sinks])
    with _stopping(watching.stop), _showing(watching):
        watching.run()
    terminal.err().print(watching.told())
    return 0 if watching.pace.answered or not watching.pace.failed else 1


def _print(line: Line) -> None:
    try:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise BadConfiguration(
            cause="standard output was closed", cure="Keep the program that reads it running"
        ) from None
    except OSError as error:
        raise BadConfiguration(
            cause=f"standard output cannot be written ({error.strerror})",
            cure="Make room where it goes",
        ) from error


def _about(source: str, frame: Frame) -> dict[str, Any]:
    taken = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(frame.taken_s))
    return {
        "source": source,
        "frame": frame.number,
        "name": frame.name,
        "taken": f"{taken}.{int(frame.taken_s % 1 * 1000):03d}Z",
    }


@contextmanager
def _stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Makes the first Ctrl-C or SIGTERM end the watch, which waits for the answers in progress;
    a second one ends the process.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]

    def restore() -> None:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)

    def end(*_: object) -> None:
        restore()
        stop()

    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        restore()


@contextmanager
def _showing(watching: Watch) -> Iterator[None]:
    """A line that is kept up to date on a terminal; nothing elsewhere."""
    console = terminal.err()
    if not console.is_terminal:
        yield
        return
    ended = threading.Event()
    spinner = Spinner("dots", "waiting for a frame")
    # Lines for another program must not pass through the terminal's display.
    shared = sys.stdout.isatty()
    with Live(spinner, console=console, transient=True, redirect_stdout=shared):

        def refresh() -> None:
            while not ended.wait(0.5):
                spinner.update(text=watching.told())

        shower = threading.Thread(target=refresh, daemon=True)
        shower.start()
        try:
            yield
        finally:
            ended.set()
            shower.join()
