from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from coordinator.serving.app import create_app
from tests.serving.in_place import InPlace


@pytest.fixture
def coordinator() -> InPlace:
    return InPlace()


@pytest.fixture
async def http(coordinator: InPlace) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(coordinator), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client
