"""Interfaces by what the kernel says they are, whatever their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from protos.daemon.interfaces import InterfaceRank, best, own_interfaces, rank_of, rank_towards
from tests.protos.machines import Machine, home_assistant


def test_names_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home_assistant(tmp_path).plant(monkeypatch)
    assert {each.name: each.rank for each in own_interfaces()} == {
        "lo": InterfaceRank.LOOPBACK,
        "docker0": InterfaceRank.INNER,
        "hassio": InterfaceRank.INNER,
        "wt0": InterfaceRank.TUNNEL,
        "home-vpn": InterfaceRank.TUNNEL,
        "enp3s0": InterfaceRank.PHYSICAL,
        "wlp2s0": InterfaceRank.PHYSICAL,
        "lan": InterfaceRank.PHYSICAL,
        "eth0": InterfaceRank.VIRTUAL,
    }
    assert {each.name for each in best(own_interfaces())} == {"enp3s0", "wlp2s0", "lan"}


def test_interfaces_on_top_of_a_cable_are_physical(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.has("docker7", "", "device")  # somebody's name for a cable
    machine.has("bond", "", "lower_docker7")
    machine.has("bond.20", "", "lower_bond")
    machine.has("br-20", "", "bridge", "lower_bond.20")
    machine.has("loop", "", "lower_loop")
    for name in ("docker7", "bond", "bond.20", "br-20"):
        assert rank_of(name, tmp_path) is InterfaceRank.PHYSICAL
    assert rank_of("loop", tmp_path) is InterfaceRank.VIRTUAL


def test_names_of_interfaces_count_where_the_kernel_says_nothing(tmp_path: Path) -> None:
    named = {
        "lo": InterfaceRank.LOOPBACK,
        "eth0": InterfaceRank.PHYSICAL,
        "docker0": InterfaceRank.INNER,
        "wg0": InterfaceRank.TUNNEL,
    }
    assert {name: rank_of(name, tmp_path) for name in named} == named


@pytest.mark.parametrize(
    ("address", "rank"),
    [
        ("10.0.0.77", InterfaceRank.PHYSICAL),
        ("10.0.5.77", InterfaceRank.PHYSICAL),
        ("10.99.0.77", InterfaceRank.VIRTUAL),
        ("100.99.1.1", InterfaceRank.TUNNEL),
        ("172.17.0.2", InterfaceRank.INNER),
        ("172.30.32.1", InterfaceRank.INNER),
        ("172.29.0.1", InterfaceRank.FAR),
        ("127.0.0.1", InterfaceRank.LOOPBACK),
        ("fe80::1", InterfaceRank.PHYSICAL),
    ],
)
def test_the_way_to_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, rank: InterfaceRank
) -> None:
    home_assistant(tmp_path).plant(monkeypatch)
    assert rank_towards(address, own_interfaces()) is rank
