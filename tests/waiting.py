"""Waiting for something to be so."""

import asyncio
import time
from collections.abc import Callable

_POLL_S = 0.005


async def until(condition: Callable[[], object], within_s: float = 30.0) -> float:
    """The seconds that it took; TimeoutError where it isn't so in time."""
    began = time.monotonic()
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(_POLL_S)
    return time.monotonic() - began
