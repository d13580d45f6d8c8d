"""Interfaces by what the kernel says they are, whatever their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from protos.daemon.interfaces import Rank, best, own_interfaces, rank_of, rank_towards
from tests.protos.machines import Machine, home_assistant


def test_names_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home_assistant(tmp_path).plant(monkeypatch)
    assert {each.name: each.rank for each in own_interfaces()} == {
        "lo": Rank.LOOPBACK,
        "docker0": Rank.INNER,
        "hassio": Rank.INNER,
        "wt0": Rank.TUNNEL,
        "home-vpn": Rank.TUNNEL,
        "enp3s0": Rank.PHYSICAL,
        "wlp2s0": Rank.PHYSICAL,
        "lan": Rank.PHYSICAL,
        "eth0": Rank.VIRTUAL,
    }
    assert {each.name for each in best(own_interfaces())} == {"enp3s0", "wlp2s0", "lan"}


def test_what_lies_on_a_cable_is_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.has("docker7", "", "device")  # somebody's name for a cable
    machine.has("bond", "", "lower_docker7")
    machine.has("bond.20", "", "lower_bond")
    machine.has("br-20", "", "bridge", "lower_bond.20")
    machine.has("loop", "", "lower_loop")
    for name in ("docker7", "bond", "bond.20", "br-20"):
        assert rank_of(name, tmp_path) is Rank.PHYSICAL
    assert rank_of("loop", tmp_path) is Rank.VIRTUAL


def test_where_the_kernel_says_nothing_names_count(tmp_path: Path) -> None:
    named = {"lo": Rank.LOOPBACK, "eth0": Rank.PHYSICAL, "docker0": Rank.INNER, "wg0": Rank.TUNNEL}
    assert {name: rank_of(name, tmp_path) for name in named} == named


@pytest.mark.parametrize(
    ("address", "rank"),
    [
        ("10.0.0.77", Rank.PHYSICAL),
        ("10.0.5.77", Rank.PHYSICAL),
        ("10.99.0.77", Rank.VIRTUAL),
        ("100.99.1.1", Rank.TUNNEL),
        ("172.17.0.2", Rank.INNER),
        ("172.30.32.1", Rank.INNER),
        ("172.29.0.1", Rank.FAR),
        ("127.0.0.1", Rank.LOOPBACK),
        ("fe80::1", Rank.PHYSICAL),
    ],
)
def test_the_way_to_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, rank: Rank
) -> None:
    home_assistant(tmp_path).plant(monkeypatch)
    assert rank_towards(address, own_interfaces()) is rank
