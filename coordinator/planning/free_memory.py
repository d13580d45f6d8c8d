"""What is left of the devices' memory while weights are placed."""

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.planning.geometry.layouts import UnitTile
from models.tensors.memory import PROGRAM_BYTES
from protos.wire.facts import DeviceId


@dataclass(slots=True)
class Room:
    """What is left on a device: bytes for `weights`, and of `memory` for everything. `relaid` is
    what its engine can lay out anew for one program, `activations` the most of any so far.
    """

    weights: float
    memory: float
    relaid: float
    activations: float = 0.0

    @property
    def left(self) -> float:
        """Bytes of weights that another program can have."""
        return max(0.0, min(self.weights, self.memory - PROGRAM_BYTES))

    def takes(self, tile: UnitTile, program: Sequence[UnitTile] = ()) -> bool:
        """Whether it has room for a tile as part of a program with others, or in its own."""
        relaid = sum(each.relaid_bytes for each in (*program, tile))
        fits = tile.weight_bytes <= self.weights and relaid <= self.relaid
        return fits and self._memory_for(tile, begins=not program) <= self.memory

    def take(self, tile: UnitTile, *, begins: bool) -> None:
        """Gives it the room."""
        self.memory -= self._memory_for(tile, begins=begins)
        self.weights -= tile.weight_bytes
        self.activations = max(self.activations, _activation_bytes(tile))

    def _memory_for(self, tile: UnitTile, *, begins: bool) -> float:
        more = max(0.0, _activation_bytes(tile) - self.activations)
        return tile.weight_bytes + more + begins * PROGRAM_BYTES


Rooms = dict[DeviceId, Room]


def _activation_bytes(tile: UnitTile) -> int:
    return max((work.input_bytes + work.output_bytes for work in tile.work), default=0)
