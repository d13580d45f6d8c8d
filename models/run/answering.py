"""Puts a network's outputs together from what devices computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from weakref import WeakKeyDictionary

import numpy as np

from models.graph.ending import Ending
from models.graph.graph import JoinedOutput
from models.run.reference import WholeModel

_ENDINGS: WeakKeyDictionary[Ending, WholeModel] = WeakKeyDictionary()


def answer(
    outputs: Iterable[str],
    joined: Mapping[str, JoinedOutput],
    arrays: Mapping[str, np.ndarray],
    ending: Ending | None = None,
) -> dict[str, np.ndarray]:
    """The outputs of a network from what was computed of them."""
    if ending is not None:
        names = tuple(outputs)
        made = answer(ending.ahead(names), joined, arrays)
        made |= _ended(ending, made[ending.source])
        return {name: made[name] for name in names}
    found = {}
    for name in outputs:
        if name in joined:
            axis, parts = joined[name]
            found[name] = np.concatenate([arrays[part] for part in parts], axis=axis)
        else:
            found[name] = arrays[name]
    return found


def _ended(ending: Ending, source: np.ndarray) -> dict[str, np.ndarray]:
    if ending not in _ENDINGS:
        _ENDINGS[ending] = WholeModel(ending.model, threads=1)
    return _ENDINGS[ending].run({ending.source: source})
