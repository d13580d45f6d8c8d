"""How fast a device or link is at present, and from when on that is worth another plan."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Smaller drifts move no cut by a row; concurrent transfers look like slower links.
DRIFT = math.log(1.2)
LINK_DRIFT = math.log(1.5)
# A message between devices takes milliseconds of a request at most; but the first guess is far off.
MESSAGE_DRIFT = math.log(5.0)


@dataclass(frozen=True, slots=True)
class Observed:
    """The present estimate for a device or link, as the logarithm of its factor over the first
    measurement; `surprise` is the logarithm of the last observation over that estimate, `drift` how
    far the factor may move before plans are looked at again.
    """

    log_factor: float
    surprise: float = 0.0
    drift: float = DRIFT
