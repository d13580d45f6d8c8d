"""Which coordinators this worker works for: each is told of the others."""

from collections import OrderedDict
from dataclasses import dataclass

# A coordinator greets every ten seconds; who missed two greetings is gone.
LATELY_S = 30.0
# More than anybody runs in one home.
_MOST = 16


@dataclass(slots=True)
class _Greetings:
    first_s: float
    last_s: float


class Hosts:
    """Coordinators by what they call themselves (an id, and after a space a name for people) and
    by their incarnation, which every start of one has of its own.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], _Greetings] = OrderedDict()

    def greeted(self, coordinator: str, incarnation: str, now: float) -> list[str]:
        """A coordinator says who it is; the others that did so lately. What it was before a
        restart is none of them, a copy of it that greets meanwhile is.
        """
        own = self._seen.pop((coordinator, incarnation), _Greetings(now, now))
        while len(self._seen) >= _MOST:
            self._seen.popitem(last=False)
        own.last_s = now
        others = [
            name
            for (name, _), each in self._seen.items()
            if now - each.last_s <= LATELY_S and (name != coordinator or each.last_s > own.first_s)
        ]
        self._seen[coordinator, incarnation] = own
        return list(dict.fromkeys(others))
