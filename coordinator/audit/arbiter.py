"""Who says what a task should have made: our own onnxruntime, in a process of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

from coordinator.audit.case import Case
from coordinator.audit.job import Found, Job, Weight, receive, send
from models.mapped import place_of
from models.program import BlobSource, Program, WeightRef
from protos.errors import ImbrexError

# The largest block of VGG-16 takes a Raspberry Pi 3 about ten.
MOST_S = 120.0
# After so long without work the process ends: it takes 80 MB.
IDLE_S = 10.0
_COMMAND = (sys.executable, "-m", "coordinator.audit.recompute")

_Process = subprocess.Popen[bytes]


class NoVerdict(ImbrexError):
    """The task could not be computed again here: that says nothing of the device."""

    code = "no_verdict"


class Arbiter:
    """Computes tasks again, one after the other."""

    def __init__(self) -> None:
        self._process: _Process | None = None
        self._one_at_a_time = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None
        # One thread at a time speaks with the process. One whose caller has gone ends soon: the
        # process is killed.
        self._speaking = threading.Lock()
        self._closed = False

    async def judge(self, case: Case) -> Found:
        """What of a complete case differs most from what it should be.

        Raises:
            NoVerdict: it cannot be computed here.
        """
        async with self._one_at_a_time:
            if self._idle is not None:
                self._idle.cancel()
            try:
                async with asyncio.timeout(MOST_S):
                    answer = await asyncio.to_thread(self._asked, case)
            except (OSError, EOFError, TimeoutError) as error:
                self._end()
                raise NoVerdict(
                    cause=f"computing the task again failed ({type(error).__name__})",
                    cure="See whether this device is short of memory",
                ) from error
            except asyncio.CancelledError:
                self._end()
                raise
            finally:
                self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end)
        if isinstance(answer, Found):
            return answer
        raise NoVerdict(cause=f"the task cannot be computed here: {answer}", cure="Report this")

    def close(self) -> None:
        """Ends the process; nothing is judged any more."""
        if self._idle is not None:
            self._idle.cancel()
        self._closed = True
        self._end()

    def _asked(self, case: Case) -> object:
        with self._speaking:
            process = self._process
            if process is None or process.poll() is not None:
                process = self._process = subprocess.Popen(
                    _COMMAND,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is for the coordinator
                )
            if self._closed:
                self._end()
                raise EOFError
            assert process.stdin is not None
            assert process.stdout is not None
            send(process.stdin, _job(case))
            return receive(process.stdout)

    def _end(self) -> None:
        """Who waits for its answer gets an EOFError."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


def _job(case: Case) -> Job:
    return Job(
        graph=case.program.graph,
        weights=_weights(case.program, case.blobs),
        inputs=case.inputs,
        received=tuple(case.received),
        tolerance=case.tolerance,
    )


def _weights(program: Program, blobs: BlobSource) -> tuple[Weight, ...]:
    def source(ref: WeightRef) -> Weight:
        place = place_of(blobs.array_of(ref.sha256))
        return Weight(ref.name, ref.data_type, ref.dims, place or bytes(blobs.bytes_of(ref.sha256)))

    return tuple(map(source, program.weights))
