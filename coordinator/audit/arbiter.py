"""Computes what a task should have yielded, with onnxruntime in a separate process."""

import asyncio
import subprocess
import sys
import threading

from coordinator.audit.case import Case
from coordinator.audit.job import AuditJob, OutputDifference, Weight, receive, send
from models.cut.program import BlobSource, Program, WeightRef
from models.onnx_file.mapped import location_of
from protos.errors import ImbrexError

# Bounds the time for one task: a Raspberry Pi 3 takes ten seconds for VGG-16's largest block.
MOST_S = 120.0
# The process ends after this long without work, because it takes 80 MB.
IDLE_S = 10.0
_COMMAND = (sys.executable, "-m", "coordinator.audit.recompute")

_Process = subprocess.Popen[bytes]


class NoVerdict(ImbrexError):
    """The task could not be computed again here, which says nothing about the device."""

    code = "no_verdict"


class Arbiter:
    """Computes tasks again, one at a time."""

    def __init__(self) -> None:
        self._process: _Process | None = None
        self._one_at_a_time = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None
        # One thread at a time talks to the process. If its caller is gone, it ends soon, because
        # the process is killed.
        self._speaking = threading.Lock()
        self._closed = False

    async def judge(self, case: Case) -> OutputDifference:
        """The result that differs most from what a complete case should have yielded.

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
        if isinstance(answer, OutputDifference):
            return answer
        raise NoVerdict(cause=f"the task cannot be computed here: {answer}", cure="Report this")

    def close(self) -> None:
        """Ends the process; nothing is judged after this."""
        if self._idle is not None:
            self._idle.cancel()
        self._closed = True
        self._end()

    def _asked(self, case: Case) -> object:
        with self._speaking:
            if self._process is not None and self._process.poll() is not None:
                self._end()
            process = self._process
            if process is None:
                process = self._process = subprocess.Popen(
                    _COMMAND,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C must reach only the coordinator
                )
            if self._closed:
                self._end()
                raise EOFError
            assert process.stdin is not None
            assert process.stdout is not None
            send(
                process.stdin,
                AuditJob(
                    graph=case.program.graph,
                    weights=_weights(case.program, case.blobs),
                    inputs=case.inputs,
                    received=tuple(case.received),
                    tolerance=case.tolerance,
                ),
            )
            return receive(process.stdout)

    def _end(self) -> None:
        """Ends the process; a pending call gets an EOFError."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


def _weights(program: Program, blobs: BlobSource) -> tuple[Weight, ...]:
    def source(ref: WeightRef) -> Weight:
        location = location_of(blobs.array_of(ref.sha256))
        return Weight(
            ref.name, ref.data_type, ref.dims, location or bytes(blobs.bytes_of(ref.sha256))
        )

    return tuple(map(source, program.weights))
