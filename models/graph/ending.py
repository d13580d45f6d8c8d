"""The end of a network that picks entries of a list, set apart from what devices compute."""

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import ModelProto

from models.tensors.boxes import Span
from models.tensors.selection import Selection, Selections

# Dimensions of the list, and of the rows: entries, and the values of each.
ENTRIES, VALUES = 1, 2


@dataclass(frozen=True, eq=False)
class Ending:
    """The last nodes of a network as one of their own: from the tensor `source` (1, entries,
    values) to `outputs` (1, rows, values). Entries are ranked by their best value in `scores`; each
    row has such a value at `column`.
    """

    model: ModelProto
    source: str
    outputs: tuple[str, ...]
    scores: Span
    column: int

    def ahead(self, outputs: Sequence[str]) -> tuple[str, ...]:
        """What devices make for these outputs of the network."""
        behind = (self.source if output in self.outputs else output for output in outputs)
        return tuple(dict.fromkeys(behind))

    def understands(self, selections: Selections) -> bool:
        """Whether what is read of its outputs are rows by their score."""
        mine = [selections[name] for name in self.outputs if name in selections]
        score = Span(self.column, self.column + 1)
        return len(mine) == len(self.outputs) and all(
            (selection.axis, selection.across, selection.scores, selection.factor)
            == (ENTRIES, VALUES, score, None)
            for selection in mine
        )

    def selected(self, selections: Selections) -> Selections:
        """Selections by output, with those of its outputs as one of `source`."""
        found = {
            name: selection for name, selection in selections.items() if name not in self.outputs
        }
        if not self.understands(selections):
            return found
        least = min(selections[name].least for name in self.outputs)
        return {**found, self.source: Selection(ENTRIES, VALUES, self.scores, least)}
