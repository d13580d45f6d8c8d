"""Which coordinators this worker works for: each is told of the others."""

from collections import OrderedDict

# A coordinator greets every ten seconds; who missed two greetings is gone.
LATELY_S = 30.0
# More than anybody runs in one home.
_MOST = 16


class Hosts:
    """Coordinators by what they call themselves: an id, and after a space a name for people."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, float] = OrderedDict()

    def greeted(self, coordinator: str, now: float) -> list[str]:
        """A coordinator says who it is; the others that did so lately."""
        self._seen.pop(coordinator, None)
        while len(self._seen) >= _MOST:
            self._seen.popitem(last=False)
        self._seen[coordinator] = now
        return [
            other
            for other, seen_s in self._seen.items()
            if other != coordinator and now - seen_s <= LATELY_S
        ]
