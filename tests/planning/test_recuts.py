"""Cuts by the dynamic program: what it counts on, and what the price of an exchange changes."""

from dataclasses import replace
from itertools import pairwise

import pytest

from coordinator.costs.cluster import Cluster, Link
from coordinator.planning.search.block_costs import Stages
from coordinator.planning.search.block_tiles import Forms
from coordinator.planning.search.recuts import Recuts
from coordinator.planning.search.slots import Slot, SlotForm
from coordinator.planning.search.tables import tables_of
from models.cut.units import Network
from tests.planning.support import cluster, real

STRIPS = SlotForm((0, 1, 2), "rows")


def recuts_of(network: Network, some: Cluster) -> tuple[Forms, Recuts]:
    forms = Forms(Stages(network, some, tables_of(network, some)))
    return forms, Recuts(forms)


def test_a_block_costs_its_slowest_strip() -> None:
    forms, recuts = recuts_of(real("resnet18"), cluster(1.0, 2.0, 0.5))
    computing, _ = recuts.strips_of(STRIPS.devices)
    marks = forms.geometry.marks
    compared = 0
    for start in marks[:-1]:
        for end in marks[start + 1 :]:
            stage = forms.stage(Slot(start, end, STRIPS))
            if stage is not None and len(stage.shares) == len(STRIPS.devices):
                slowest_s = max(tile.compute_s for tile in stage.loads)
                assert computing[start, end] == pytest.approx(slowest_s)
                compared += 1
    assert compared > len(marks)


def test_the_dearer_exchanges_are_the_fewer_there_are() -> None:
    network, some = real("resnet18"), cluster(1.0, 1.0, 1.0)
    counts = []
    for latency_s in (1e-4, 0.1, 10.0):
        link = Link(1e8, latency_s=latency_s)
        devices = tuple(replace(each, link=link) for each in some.devices)
        _, recuts = recuts_of(network, replace(some, devices=devices))
        forms = (STRIPS, replace(STRIPS, edge_rows=2))
        counts.append([len(slots) for form in forms for slots in recuts.drafts(form)])
    cheap, dear, dearest = counts
    assert sum(cheap) > sum(dear) > sum(dearest)
    assert max(dearest) == 1


def test_moves_change_the_cuts_of_a_few_blocks() -> None:
    forms, recuts = recuts_of(real("resnet18"), cluster(1.0, 1.0, 1.0, link=Link(1e8)))
    marks = forms.geometry.marks
    slots = tuple(
        Slot(start, end, STRIPS, peers=start > 0)
        for start, end in ((marks[0], marks[4]), (marks[4], marks[6]), (marks[6], marks[8]))
    )
    moves = [*recuts.moves(slots, 0)]
    assert moves
    for trial in moves:
        assert trial != slots
        assert (trial[0].start, trial[-1].end) == (marks[0], marks[8])
        assert all(one.end == other.start for one, other in pairwise(trial))
        assert all(slot.peers == (slot.start > 0) for slot in trial)
    alone = Slot(marks[4], marks[8], SlotForm(()))
    assert all(trial[-1] == alone for trial in recuts.moves((slots[0], alone), 0))
    assert not [*recuts.moves((slots[0], alone), 1)]
