"""Ports for what benchmarks and tests start."""

import random

import pytest

from benchmarks.store import free_port


def test_ports_are_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two settings of one coordinator had the same port, once in hundreds of runs."""
    first = free_port()
    drawn = iter((first, first, first + 1, first + 2, first + 3, first + 4))
    monkeypatch.setattr(random, "randrange", lambda *_: next(drawn))
    assert free_port() != first
