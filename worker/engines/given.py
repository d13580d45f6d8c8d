"""Programs as they were given, for engines that keep no prepared form of their own on disk."""

from collections import OrderedDict

import numpy as np

from models.cut.program import Program
from protos.errors import Unavailable
from protos.wire.convert import dtype_of
from worker.programs.store import BlobStore

# Programs without their weights, a few kilobytes each.
_MOST = 4096


class Given:
    """The programs that were given since the start, by hash; the oldest are dropped."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._programs: OrderedDict[str, Program] = OrderedDict()

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._programs

    def add(self, program: Program) -> None:
        """Keeps a program."""
        self._programs[program.sha256] = program
        while len(self._programs) > _MOST:
            self._programs.popitem(last=False)

    def get(self, sha256: str) -> Program | None:
        """A program; None if it was not given or has been dropped."""
        return self._programs.get(sha256)

    def programs(self) -> list[Program]:
        """All of them, the oldest first."""
        return list(self._programs.values())

    def weights(self, program: Program) -> dict[str, np.ndarray]:
        """A program's weights by name: maps of their blobs.

        Raises:
            Unavailable: a blob is no longer there.
        """
        found: dict[str, np.ndarray] = {}
        for ref in program.weights:
            dtype = dtype_of(ref.data_type)
            try:
                found[ref.name] = (
                    np.empty(ref.dims, dtype)
                    if 0 in ref.dims
                    else np.memmap(self._store.path(ref.sha256), dtype, mode="r", shape=ref.dims)
                )
            except (OSError, ValueError) as error:
                raise Unavailable(
                    cause=f"the weight {ref.name!r} is no longer here: {error}",
                    cure="Raise disk_mb on this worker",
                ) from error
        return found
