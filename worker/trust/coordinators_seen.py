"""The coordinators that use this worker: each is told about the others."""

from collections import OrderedDict
from dataclasses import dataclass

# A coordinator greets every ten seconds; one that missed two greetings is gone.
LATELY_S = 30.0
# More than one cluster ever has.
_MOST = 16


@dataclass(slots=True)
class _Greetings:
    first_s: float
    last_s: float


class Hosts:
    """Coordinators by how they identify themselves (an id, a space and a display name) and by their
    incarnation, which is new at each start.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], _Greetings] = OrderedDict()

    def greeted(self, coordinator: str, incarnation: str, now: float) -> list[str]:
        """Records a coordinator's greeting; returns the others that greeted recently. The same
        coordinator before a restart is not among them, but a copy of it that still greets is.
        """
        own = self._seen.pop((coordinator, incarnation), _Greetings(now, now))
        while len(self._seen) >= _MOST:
            self._seen.popitem(last=False)
        own.last_s = now
        others = [
            name
            for (name, _), seen in self._seen.items()
            if now - seen.last_s <= LATELY_S and (name != coordinator or seen.last_s > own.first_s)
        ]
        self._seen[coordinator, incarnation] = own
        return list(dict.fromkeys(others))
