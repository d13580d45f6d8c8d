"""A worker's store with its engine and sessions, as one daemon has them."""

from worker.compute.sessions import Sessions
from worker.engines.base import Place
from worker.engines.onnxruntime import OnnxRuntime
from worker.engines.ort_session import BLOCKED_LAYOUT
from worker.programs.store import BlobStore


class Room:
    """Programs are installed as a coordinator does it."""

    def __init__(
        self,
        directory,
        cap_bytes=1 << 20,
        disk_bytes=1 << 20,
        as_on_arm=False,
        memory_bytes=1 << 40,
    ):
        self.store = BlobStore(directory, disk_bytes)
        place = Place(directory / "optimised", self.store, 1, memory_bytes)
        self.engine = OnnxRuntime(place, (BLOCKED_LAYOUT,) if as_on_arm else ())
        self.sessions = Sessions(self.engine, self.store, cap_bytes)
        self.store.in_use = self.sessions.blobs_in_use

    def install(self, program, blobs):
        for sha256 in self.sessions.missing([program]):
            data = bytes(blobs.bytes_of(sha256))
            self.store.append(sha256, 0, len(data), data)
            self.store.complete(sha256, len(data))
        self.sessions.prepare(program)
