"""The loaded programs of this worker: an LRU cache under a memory cap."""

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from models.cut.program import Program
from models.tensors.memory import megabytes
from protos.daemon.process_memory import give_back_memory
from protos.failures import NoProgram, OutOfMemory
from worker.engines.base import Engine, Runnable
from worker.programs.store import BlobStore

# A session without its weights and activations takes about a megabyte.
_MAX_LOADED = 256
_MAX_PREPARED = 4096


class Sessions:
    """Runnable programs by hash. Safe to call from several threads.

    A prepared program that was evicted is loaded again when a task names it; that takes
    milliseconds, since the engine keeps the prepared form.
    """

    def __init__(self, engine: Engine, store: BlobStore, weights_cap_bytes: int) -> None:
        self._engine = engine
        self._store = store
        self._cap_bytes = weights_cap_bytes
        self._loaded: OrderedDict[str, Runnable] = OrderedDict()
        # With the coordinators that use them.
        self._prepared: OrderedDict[str, set[str]] = OrderedDict()
        self._pinned: frozenset[str] = frozenset()
        # Preparing takes long and must not hold up tasks, which only need `_lock`.
        self._building = threading.Lock()
        self._lock = threading.RLock()

    def missing(self, programs: Iterable[Program]) -> list[str]:
        """Blobs to fetch before these programs can be prepared; programs that the engine has
        already prepared need none.
        """
        needed = [
            ref.sha256
            for program in programs
            if not self._engine.is_prepared(program.sha256)
            for ref in program.weights
        ]
        return self._store.missing(needed)

    def prepare(self, program: Program, coordinator: str = "") -> None:
        """Prepares the program's session for a coordinator; returns at once if it is loaded.

        Raises:
            ImbrexError: the program is refused, or memory or disk are short.
        """
        sha256 = program.sha256
        self._build(program)
        with self._lock:
            self._prepared.setdefault(sha256, set()).add(coordinator)
            while len(self._prepared) > _MAX_PREPARED:
                self._loaded.pop(self._prepared.popitem(last=False)[0], None)
        try:
            self.get(sha256)
        except NoProgram:  # its prepared form turned out to be damaged
            self._build(program)
            self.get(sha256)

    def _build(self, program: Program) -> None:
        with self._building:
            if program.sha256 in self._loaded or self._engine.is_prepared(program.sha256):
                return
            with self._pin(program):
                self._engine.prepare(program)

    def get(self, sha256: str) -> Runnable:
        """The session of a prepared program.

        Raises:
            NoProgram: it was not prepared, or its weights are gone.
        """
        with self._lock:
            session = self._loaded.get(sha256)
            if session is not None:
                self._loaded.move_to_end(sha256)
                return session
            if sha256 not in self._prepared:
                raise _no_program(sha256)
            return self._load(sha256)

    def retain(self, programs: Collection[str], coordinator: str = "") -> None:
        """Drops a coordinator's programs that are not named, unless another one uses them."""
        keep = frozenset(programs)
        with self._lock:
            for sha256 in [sha256 for sha256 in self._prepared if sha256 not in keep]:
                self._prepared[sha256].discard(coordinator)
                if not self._prepared[sha256]:
                    del self._prepared[sha256]
                    self._loaded.pop(sha256, None)
        give_back_memory()

    def blobs_in_use(self) -> frozenset[str]:
        """Blobs mapped by loaded sessions, or needed by the one being prepared."""
        with self._lock:
            return self._pinned.union(*(session.blobs for session in self._loaded.values()))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of all loaded sessions, shared ones once."""
        with self._lock:
            read: dict[str, int] = {}
            for session in self._loaded.values():
                for blob, size in session.blobs.items():
                    read[blob] = max(size, read.get(blob, 0))
            return sum(read.values())

    def _load(self, sha256: str) -> Runnable:
        session = self._engine.load(sha256)
        if session is None:
            raise _no_program(sha256)
        self._loaded[sha256] = session
        while len(self._loaded) > _MAX_LOADED or self.weight_bytes > self._cap_bytes:
            oldest = next(iter(self._loaded))
            del self._loaded[oldest]
            if oldest == sha256:
                raise OutOfMemory(
                    cause=f"the weights of program {sha256[:12]} exceed the "
                    f"{megabytes(self._cap_bytes)} that this worker may use for weights",
                    cure="Raise memory_mb, or plan this block on another device",
                )
        return session

    @contextmanager
    def _pin(self, program: Program) -> Iterator[None]:
        self._pinned = frozenset(ref.sha256 for ref in program.weights)
        try:
            yield
        finally:
            self._pinned = frozenset()


def _no_program(sha256: str) -> NoProgram:
    return NoProgram(
        cause=f"program {sha256[:12]} is not prepared here", cure="Prepare it, then send the task"
    )
