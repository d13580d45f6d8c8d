"""A new cluster for each test."""

import pytest

from tests.trust.support import make_trust


@pytest.fixture
def trust(tmp_path):
    return make_trust(tmp_path / "coordinator")
